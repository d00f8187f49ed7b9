// Which devices the compiled kernels run on.
#include <charconv>
#include <string_view>

#include "backends/gpu/platform.hpp"

namespace portile::gpu {

const char* const built_archs = PORTILE_GPU_ARCHS;

namespace {

// One entry of the list: "90-real", "90a-real" or "90-virtual" (PTX) for CUDA, the name itself for HIP.
bool runs(std::string_view entry, std::string_view arch) {
  if (platform_kind != device_kind::cuda) return entry == arch;
  if (entry == "any") return true;
  const auto dash = entry.find('-');
  const std::string_view name = entry.substr(0, dash);
  const bool ptx = dash != std::string_view::npos && entry.substr(dash + 1) == "virtual";
  if (!arch.starts_with("sm_")) return false;
  int built = 0, device = 0;
  const auto r = std::from_chars(name.data(), name.data() + name.size(), built);
  std::from_chars(arch.data() + 3, arch.data() + arch.size(), device);
  if (r.ptr != name.data() + name.size()) return built == device && !ptx;  // 90a: that architecture alone
  // Machine code runs on later parts of its major version, PTX on all later ones.
  return ptx ? device >= built : device >= built && device / 10 == built / 10;
}

}  // namespace

std::string arch_refusal(const portile_device_info& device) {
  std::string_view list = built_archs;
  while (!list.empty()) {
    const auto comma = list.find(',');
    if (runs(list.substr(0, comma), device.arch)) return {};
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return std::string("built for ") + built_archs + ", the device is " + device.arch;
}

}  // namespace portile::gpu

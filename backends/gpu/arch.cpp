// Which devices the compiled kernels run on.
#include <charconv>
#include <string_view>

#include "backends/gpu/platform.hpp"

namespace portile::gpu {

const char* const built_archs = PORTILE_GPU_ARCHS;

namespace {

// One entry of the list: "sm_90", "sm_90a" (that part alone) or "compute_90" (PTX) for CUDA, the name itself
// for HIP.
bool runs(std::string_view entry, std::string_view arch) {
  if (entry == arch || entry == "any") return true;
  const bool ptx = entry.starts_with("compute_");
  if (!arch.starts_with("sm_") || !(ptx || entry.starts_with("sm_"))) return false;
  const std::string_view name = entry.substr(ptx ? 8 : 3);
  int built = 0, device = 0;
  const auto r = std::from_chars(name.data(), name.data() + name.size(), built);
  std::from_chars(arch.data() + 3, arch.data() + arch.size(), device);
  if (r.ptr != name.data() + name.size()) return built == device && !ptx;
  // Machine code runs on later parts of its major version, PTX on all later ones.
  return device >= built && (ptx || device / 10 == built / 10);
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

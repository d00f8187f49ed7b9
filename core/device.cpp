#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>

#include <portile/core/registry.hpp>
#include <portile/core/status.hpp>

namespace portile {
namespace {

constexpr std::string_view kind_names[] = {"cpu", "cuda", "hip", "sycl"};
constexpr std::string_view aspect_names[num_aspects] = {
    "fp64",  "bf16_mma", "tf32_mma", "fp8_ocp", "fp8_fnuz", "fp4_mma", "tma",
    "wgmma", "tcgen05",  "clusters", "pdl",     "mfma",     "wmma"};

constexpr std::uint64_t bit(aspect a) { return std::uint64_t{1} << static_cast<unsigned>(a); }

struct arch_entry {
  std::string_view name;
  device_kind kind;
  int wave, sms, max_shared;  ///< of a typical part: for `explain` on a device that is not there
  std::uint64_t aspects;
};

constexpr std::uint64_t ampere = bit(aspect::fp64) | bit(aspect::bf16_mma) | bit(aspect::tf32_mma);
constexpr std::uint64_t ada = ampere | bit(aspect::fp8_ocp);
constexpr std::uint64_t hopper = ada | bit(aspect::tma) | bit(aspect::clusters) | bit(aspect::pdl);
constexpr std::uint64_t cdna2 = bit(aspect::fp64) | bit(aspect::bf16_mma) | bit(aspect::mfma);

// Exact names only: an architecture that is not listed has no aspect, however close its number is.
constexpr arch_entry arch_table[] = {
    {"sm_80", device_kind::cuda, 32, 108, 166912, ampere},
    {"sm_86", device_kind::cuda, 32, 84, 101376, ampere},
    {"sm_89", device_kind::cuda, 32, 142, 101376, ada},
    {"sm_90", device_kind::cuda, 32, 132, 232448, hopper | bit(aspect::wgmma)},
    {"sm_100", device_kind::cuda, 32, 148, 232448, hopper | bit(aspect::tcgen05) | bit(aspect::fp4_mma)},
    {"sm_103", device_kind::cuda, 32, 148, 232448, hopper | bit(aspect::tcgen05) | bit(aspect::fp4_mma)},
    {"sm_120", device_kind::cuda, 32, 188, 101376, hopper | bit(aspect::fp4_mma)},
    {"sm_121", device_kind::cuda, 32, 48, 101376, hopper | bit(aspect::fp4_mma)},
    {"gfx90a", device_kind::hip, 64, 104, 65536, cdna2},
    {"gfx942", device_kind::hip, 64, 304, 65536, cdna2 | bit(aspect::tf32_mma) | bit(aspect::fp8_fnuz)},
    {"gfx950", device_kind::hip, 64, 256, 163840, cdna2 | bit(aspect::fp8_ocp) | bit(aspect::fp4_mma)},
    {"gfx1100", device_kind::hip, 32, 96, 65536, bit(aspect::bf16_mma) | bit(aspect::wmma)},
};

const arch_entry* find_arch(std::string_view name) {
  for (const arch_entry& a : arch_table)
    if (a.name == name) return &a;
  return nullptr;
}

void copy_text(char* to, std::size_t size, std::string_view from) {
  const std::size_t n = std::min(from.size(), size - 1);
  std::memcpy(to, from.data(), n);
  to[n] = 0;
}

bool served(device d) {
  for (const op_info& op : operations())
    for (const implementation_ref& i : implementations(op.name))
      if (static_cast<device_kind>(i.entry->device_kind) == d.kind()) return true;
  return false;
}

}  // namespace

std::string_view to_string(device_kind kind) {
  const auto i = static_cast<unsigned>(kind);
  return i < std::size(kind_names) ? kind_names[i] : "invalid";
}
std::string_view to_string(aspect a) {
  const auto i = static_cast<unsigned>(a);
  return i < std::size(aspect_names) ? aspect_names[i] : "invalid";
}

std::string device::text() const {
  return std::string(to_string(kind_)) + (kind_ == device_kind::cpu ? "" : ":" + std::to_string(ordinal_));
}

std::vector<aspect> device::aspects() const {
  std::vector<aspect> list;
  for (int i = 0; i < num_aspects; ++i)
    if (has(static_cast<aspect>(i))) list.push_back(static_cast<aspect>(i));
  return list;
}

device device::parse(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  int ordinal = 0;
  bool fine = true;
  if (colon != std::string_view::npos) {
    const std::string_view n = text.substr(colon + 1);
    const auto r = std::from_chars(n.data(), n.data() + n.size(), ordinal);
    fine = r.ec == std::errc{} && r.ptr == n.data() + n.size() && ordinal >= 0;
  }
  for (int k = 0; fine && k < 4; ++k)
    if (kind == kind_names[k]) {
      const device d(static_cast<device_kind>(k), ordinal);
      (void)d.info();
      return d;
    }
  throw error(status_code::invalid_argument,
              "device = '" + std::string(text) + "': must be cpu, cuda:N or hip:N");
}

std::uint64_t aspects_of_arch(std::string_view arch) {
  const arch_entry* a = find_arch(arch);
  return a ? a->aspects : 0;
}

bool device_model(std::string_view arch, portile_device_info& out) {
  out = {};
  if (arch == "cpu") {
    out = detail::cpu_info();
    return true;
  }
  const arch_entry* a = find_arch(arch);
  if (!a) return false;
  out.kind = static_cast<std::int32_t>(a->kind);
  copy_text(out.name, sizeof out.name, "model of " + std::string(arch));
  copy_text(out.arch, sizeof out.arch, arch);
  out.aspects = a->aspects;
  out.num_sms = a->sms;
  out.wave_size = a->wave;
  out.max_shared = a->max_shared;
  out.max_threads = 1024;
  return true;
}

std::vector<std::string_view> device_models() {
  std::vector<std::string_view> names{"cpu"};
  for (const arch_entry& a : arch_table) names.push_back(a.name);
  return names;
}

const portile_device_info& detail::cpu_info() {
  static const portile_device_info info = [] {
    portile_device_info i{};
    i.kind = PORTILE_DEVICE_CPU;
    utsname u{};
    uname(&u);
    copy_text(i.name, sizeof i.name, "host");
    copy_text(i.arch, sizeof i.arch, u.machine);
    i.aspects = bit(aspect::fp64);
    i.memory = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
               static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
    i.num_sms = static_cast<std::int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
    i.wave_size = 1;
    i.max_threads = 1;
    return i;
  }();
  return info;
}

device cpu_selector() { return {}; }

device default_selector() {
  for (device d : device::all())
    if (d.kind() != device_kind::cpu && served(d)) return d;
  return {};
}

device gpu_selector() {
  const device d = default_selector();
  if (d.kind() != device_kind::cpu) return d;
  std::string text = "gpu_selector: no GPU that a backend serves";
  for (const backend_info& b : backends())
    if (!b.reason.empty()) text += "; " + b.name + ": " + b.reason;
  throw error(status_code::unsupported, text);
}

}  // namespace portile

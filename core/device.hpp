#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <portile/core/abi.h>
#include <portile/core/export.hpp>

namespace portile {

enum class device_kind : std::int32_t {
  cpu = PORTILE_DEVICE_CPU,
  cuda = PORTILE_DEVICE_CUDA,
  hip = PORTILE_DEVICE_HIP,
  sycl = PORTILE_DEVICE_SYCL,
};
PORTILE_API std::string_view to_string(device_kind kind);

/// A capability. Dispatch asks for these and for the exact architecture, never for "at least".
enum class aspect : std::uint32_t {
  fp64,
  bf16_mma,
  tf32_mma,
  fp8_ocp,   ///< e4m3fn and e5m2 matrix instructions
  fp8_fnuz,  ///< e4m3fnuz matrix instructions
  fp4_mma,
  tma,
  wgmma,
  tcgen05,
  clusters,
  pdl,
  mfma,
  wmma,
};
inline constexpr int num_aspects = 13;
PORTILE_API std::string_view to_string(aspect a);

/// One device of this node: a small handle, the facts live in the registry.
class device {
 public:
  constexpr device() = default;  ///< the host
  constexpr device(device_kind kind, int ordinal) : kind_(kind), ordinal_(ordinal) {}

  constexpr device_kind kind() const { return kind_; }
  constexpr int ordinal() const { return ordinal_; }
  /// Facts; throws invalid_argument when this node has no such device.
  PORTILE_API const portile_device_info& info() const;
  std::string_view name() const { return info().name; }
  std::string_view arch() const { return info().arch; }
  bool has(aspect a) const { return info().aspects >> static_cast<unsigned>(a) & 1; }
  PORTILE_API std::vector<aspect> aspects() const;
  PORTILE_API std::string text() const;  ///< "cuda:0"

  friend constexpr bool operator==(const device&, const device&) = default;

  /// All devices of this node, the host last.
  PORTILE_API static std::vector<device> all();
  /// "cpu", "cuda", "cuda:1", "hip:0"; throws invalid_argument for anything else or a device that is not
  /// there.
  PORTILE_API static device parse(std::string_view text);

 private:
  device_kind kind_ = device_kind::cpu;
  std::int32_t ordinal_ = 0;
};

/// Aspects of an architecture by name, from an exact table; 0 for one the table does not know.
PORTILE_API std::uint64_t aspects_of_arch(std::string_view arch);
/// A device that need not be there, for `explain`: "sm_90", "gfx942", "cpu". False when the name is unknown.
PORTILE_API bool device_model(std::string_view arch, portile_device_info& out);
/// Every name that device_model knows.
PORTILE_API std::vector<std::string_view> device_models();

/// Chooses a device: pass one to the constructor of queue.
using selector = device (*)();
PORTILE_API device default_selector();  ///< the first GPU that an implementation serves, else the host
PORTILE_API device cpu_selector();
PORTILE_API device gpu_selector();  ///< throws unsupported, with the reasons, when there is none

}  // namespace portile

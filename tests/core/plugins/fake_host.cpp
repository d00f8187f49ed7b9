// A host implementation of the tests' operation, for host_fallback and for runs on the host.
#include <iterator>

#include <portile/core/plugin.hpp>

#include "core/test_op.hpp"

namespace portile::test {
namespace {

struct loops {
  static plugin::verdict supports(const portile_device_info&, const scale_rows& p) {
    return p.times == 99 ? plugin::refuse("times = 99 is refused on the host") : plugin::accept();
  }
  static std::uint64_t workspace(const portile_device_info&, const scale_rows& p) {
    return static_cast<std::uint64_t>(p.x.extent(0)) + 1;
  }
  static void launch(const portile_launch& l, const scale_rows& p) {
    if (reinterpret_cast<std::uintptr_t>(l.workspace) % 256 != 0)
      throw error(status_code::internal, "workspace is not aligned");
    static_cast<char*>(l.workspace)[l.workspace_bytes - 1] = 1;
    compute(l, p);
  }
};

constexpr portile_implementation entry =
    plugin::make_implementation<scale_rows, loops>("host.loops", device_kind::cpu, "any");
constexpr const portile_implementation* list[] = {&entry};

}  // namespace
}  // namespace portile::test

extern "C" __attribute__((visibility("default"))) std::int32_t portile_backend_entry(
    const portile_host*, const portile_backend** out, char*, std::size_t) {
  using namespace portile;
  static const portile_backend table =
      plugin::make_backend("fake_host", "1", device_kind::cpu, test::list, std::size(test::list));
  *out = &table;
  return 0;
}

// A GPU plug-in on a machine with no driver: no devices, a reason, and implementations that still answer for
// device models.
#include <portile/core/plugin.hpp>
#include <portile/kernels/quant/per_token_cast.hpp>

namespace {

using namespace portile;

struct kernel {
  static plugin::verdict supports(const portile_device_info& d, const quant::per_token_cast& p) {
    if (std::string_view(d.arch) != "sm_100")
      return plugin::refuse(std::string("arch = ") + d.arch + ": needs sm_100");
    if (p.num_per_channels != 32)
      return plugin::refuse("num_per_channels = " + std::to_string(p.num_per_channels) + ": needs 32");
    return plugin::accept();
  }
  static void launch(const portile_launch&, const quant::per_token_cast&) {
    throw error(status_code::device_error, "no driver");
  }
};

constexpr portile_implementation entry =
    plugin::make_implementation<quant::per_token_cast, kernel>("cuda.nodriver", device_kind::cuda, "sm_100");
constexpr const portile_implementation* list[] = {&entry};

}  // namespace

extern "C" __attribute__((visibility("default"))) std::int32_t portile_backend_entry(
    const portile_host*, const portile_backend** out, char*, std::size_t) {
  static portile_backend table = plugin::make_backend("nodriver", "1", device_kind::cuda, list, 1);
  table.no_device_reason = "libfake.so.1: cannot open shared object file";
  *out = &table;
  return 0;
}

// Plug-ins that must be refused, one per value of BAD.
#include <portile/core/plugin.hpp>

extern "C" __attribute__((visibility("default")))
#if BAD_NO_SYMBOL
std::int32_t
portile_backend_entree(
#else
std::int32_t
portile_backend_entry(
#endif
    const portile_host*, const portile_backend** out, [[maybe_unused]] char* text,
    [[maybe_unused]] std::size_t size) {
  using namespace portile;
  static portile_backend table = plugin::make_backend("bad", "1", device_kind::cpu, nullptr, 0);
#if BAD_VERSION
  table.abi_version = 77;
#elif BAD_SIZE
  table.size -= 8;
#elif BAD_LAUNCH_SIZE
  table.launch_size += 8;
#elif BAD_ENTRY
  std::snprintf(text, size, "this plug-in does not like %s", "Mondays");
  return static_cast<std::int32_t>(status_code::device_error);
#elif BAD_NULL_TABLE
  return 0;
#elif BAD_KIND
  table.device_kind = 12;
#elif BAD_PROBLEM_SIZE
  static portile_implementation e{};
  e.op = "quant.per_token_cast";
  e.name = "bad";
  e.archs = "any";
  e.problem_size = 3;
  e.supports = [](const portile_device_info*, const void*, char*, size_t) -> std::int32_t { return 1; };
  e.launch = [](const portile_launch*, const void*, char*, size_t) -> std::int32_t { return 0; };
  static const portile_implementation* const list[] = {&e};
  table.implementations = list;
  table.num_implementations = 1;
#elif BAD_INCOMPLETE
  static portile_implementation e{};
  e.op = "quant.per_token_cast";
  static const portile_implementation* const list[] = {&e};
  table.implementations = list;
  table.num_implementations = 1;
#endif
  *out = &table;
  return 0;
}

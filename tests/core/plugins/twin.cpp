// Built twice, as twin 1 and twin 2: same-named inline functions, inline variables and statics of inline
// functions, which the loader must keep apart. They report through the version text.
#include <portile/core/plugin.hpp>

inline int twin_counter = 0;
inline int& twin_static() {
  static int value = TWIN * 100;
  return value;
}
inline int twin_number() { return TWIN; }
template <class T>
struct twin_template {
  static inline int value = TWIN;
};
int twin_plain_global = TWIN;

extern "C" __attribute__((visibility("default"))) std::int32_t portile_backend_entry(
    const portile_host*, const portile_backend** out, char*, std::size_t) {
  using namespace portile;
  ++twin_counter;
  twin_static() += twin_counter;
  static char version[64];
  std::snprintf(version, sizeof version, "number %d counter %d static %d template %d global %d",
                twin_number(), twin_counter, twin_static(), twin_template<int>::value, twin_plain_global);
  static const portile_backend table =
      plugin::make_backend(TWIN == 1 ? "twin1" : "twin2", version, device_kind::cpu, nullptr, 0);
  *out = &table;
  return 0;
}

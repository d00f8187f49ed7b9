#pragma once
// For plug-ins: typed functions become entries of the C table. Nothing here needs libportile at link time.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <portile/core/abi.h>
#include <portile/core/problem.hpp>

namespace portile::plugin {

/// Answer of a `supports` function: yes, or no with one line of reason that holds the values.
struct verdict {
  bool yes = true;
  std::string reason;
};
inline verdict accept() { return {}; }
inline verdict refuse(std::string reason) { return {false, std::move(reason)}; }

/// Runs `f` and turns exceptions into a status code and its text: no exception crosses the boundary.
template <class F>
std::int32_t guarded(char* text, std::size_t size, F f) noexcept {
  try {
    f();
    return 0;
  } catch (const error& e) {
    std::snprintf(text, size, "%s", e.what());
    return static_cast<std::int32_t>(e.code());
  } catch (const std::bad_alloc&) {
    std::snprintf(text, size, "out of memory");
    return static_cast<std::int32_t>(status_code::out_of_memory);
  } catch (const std::exception& e) {
    std::snprintf(text, size, "%s", e.what());
    return static_cast<std::int32_t>(status_code::internal);
  } catch (...) {
    std::snprintf(text, size, "unknown exception");
    return static_cast<std::int32_t>(status_code::internal);
  }
}

namespace detail {
/// The C functions of an entry. Ordinary functions rather than lambdas: those count as device code too for
/// some compilers.
template <class P, class I>
struct entry_functions {
  static std::int32_t supports(const portile_device_info* d, const void* p, char* text, std::size_t size) {
    bool yes = false;
    (void)guarded(text, size, [&] {
      const verdict v = I::supports(*d, *static_cast<const P*>(p));
      if (!v.yes) std::snprintf(text, size, "%s", v.reason.c_str());
      yes = v.yes;
    });
    return yes;
  }
  static std::int32_t workspace(const portile_device_info* d, const void* p, std::uint64_t* bytes) {
    char text[256];
    return guarded(text, sizeof text, [&] { *bytes = I::workspace(*d, *static_cast<const P*>(p)); });
  }
  static std::int32_t launch(const portile_launch* l, const void* p, char* text, std::size_t size) {
    return guarded(text, size, [&] { I::launch(*l, *static_cast<const P*>(p)); });
  }
};
}  // namespace detail

/// Entry for problem P whose behaviour is the class I:
///   static verdict supports(const portile_device_info&, const P&);
///   static std::uint64_t workspace(const portile_device_info&, const P&);   optional
///   static void launch(const portile_launch&, const P&);                     throws portile::error
template <class P, class I>
constexpr portile_implementation make_implementation(const char* name, device_kind kind, const char* archs) {
  using functions = detail::entry_functions<P, I>;
  portile_implementation e{};
  e.op = P::name;
  e.name = name;
  e.device_kind = static_cast<std::int32_t>(kind);
  e.archs = archs;
  e.problem_size = sizeof(P);
  e.supports = &functions::supports;
  if constexpr (requires(const portile_device_info& d, const P& p) { I::workspace(d, p); })
    e.workspace = &functions::workspace;
  e.launch = &functions::launch;
  return e;
}

/// The table of a plug-in with everything but devices filled in.
inline portile_backend make_backend(const char* name, const char* version, device_kind kind,
                                    const portile_implementation* const* list, std::uint64_t count) {
  portile_backend b{};
  b.abi_version = PORTILE_ABI_VERSION;
  b.size = sizeof(portile_backend);
  b.device_info_size = sizeof(portile_device_info);
  b.launch_size = sizeof(portile_launch);
  b.implementation_size = sizeof(portile_implementation);
  b.tensor_size = sizeof(tensor);
  b.name = name;
  b.version = version;
  b.device_kind = static_cast<std::int32_t>(kind);
  b.num_implementations = count;
  b.implementations = list;
  return b;
}

}  // namespace portile::plugin

#include "core/fake.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace portile::test {

namespace fs = std::filesystem;

std::string program_folder() { return fs::canonical("/proc/self/exe").parent_path().string(); }
std::string plugin_file(const std::string& name) {
  return (fs::path(program_folder()) / "../tests/plugins" / ("libportile_backend_" + name + ".so"))
      .lexically_normal()
      .string();
}

namespace {

// The fake device must be the first of its kind, so that the tests are the same on a machine with a real one.
const int environment_is_set = [] {
  setenv("PORTILE_BACKEND_PATH", (plugin_file("fake_gpu") + ":" + plugin_file("fake_host")).c_str(), 1);
  unsetenv("PORTILE_IMPL");
  unsetenv("PORTILE_LOG");
  return 0;
}();

}  // namespace

fake_gpu_control& fake_gpu() {
  (void)environment_is_set;
  static fake_gpu_control* c = [] {
    (void)backends();
    void* handle = dlopen(plugin_file("fake_gpu").c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!handle) throw std::runtime_error("the fake device is not loaded");
    return static_cast<fake_gpu_control*>(
        reinterpret_cast<void* (*)()>(dlsym(handle, "fake_gpu_control_entry"))());
  }();
  return *c;
}

}  // namespace portile::test

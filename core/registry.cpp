#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>

#include <portile/core/composite.hpp>
#include <portile/core/log.hpp>
#include <portile/core/registry.hpp>

namespace portile {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view file_prefix = "libportile_backend_";

void host_log(const char* channel, const char* text) { log(channel, text); }
constexpr portile_host host_table{PORTILE_ABI_VERSION, sizeof(portile_host), &host_log};

struct state {
  std::recursive_mutex mutex;
  std::atomic<bool> scanned = false;
  std::deque<backend_info> backends;
  std::atomic<std::uint64_t> version{1};
};

// Leaked on purpose: plug-ins stay loaded until the process ends, whatever the order of static destructors.
state& registry_state() {
  static state* s = new state;
  return *s;
}

// The folder of libportile.so, found while it is being loaded: the loader may have used a path relative to a
// current folder that the program leaves later.
std::string find_own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&host_log), &info) || !info.dli_fname) return {};
  std::error_code ec;
  const fs::path p = fs::canonical(info.dli_fname, ec);
  return ec ? std::string{} : p.parent_path().string();
}
const std::string* const own_folder = new std::string(find_own_folder());

std::string stem_of(const std::string& file) {
  std::string s = fs::path(file).stem().string();
  return s.starts_with(file_prefix) ? s.substr(file_prefix.size()) : s;
}

std::string mismatch(const char* what, std::uint64_t got, std::uint64_t want) {
  return std::string("ABI mismatch: ") + what + " is " + std::to_string(got) + ", this library has " +
         std::to_string(want);
}

bool known_kind(std::int32_t kind) { return kind >= PORTILE_DEVICE_CPU && kind <= PORTILE_DEVICE_SYCL; }

// Why the table cannot be used; empty when it can.
std::string table_problem(const portile_backend* b) {
  if (!b) return "the entry function gave no table";
  if (b->abi_version != PORTILE_ABI_VERSION) return mismatch("version", b->abi_version, PORTILE_ABI_VERSION);
  if (b->size != sizeof(portile_backend))
    return mismatch("size of portile_backend", b->size, sizeof(portile_backend));
  if (b->device_info_size != sizeof(portile_device_info))
    return mismatch("size of portile_device_info", b->device_info_size, sizeof(portile_device_info));
  if (b->launch_size != sizeof(portile_launch))
    return mismatch("size of portile_launch", b->launch_size, sizeof(portile_launch));
  if (b->implementation_size != sizeof(portile_implementation))
    return mismatch("size of portile_implementation", b->implementation_size, sizeof(portile_implementation));
  if (b->tensor_size != sizeof(tensor))
    return mismatch("size of portile::tensor", b->tensor_size, sizeof(tensor));
  if (b->runtime && b->runtime->size != sizeof(portile_runtime))
    return mismatch("size of portile_runtime", b->runtime->size, sizeof(portile_runtime));
  if (!b->name || b->num_devices < 0 || (b->num_devices > 0 && (!b->devices || !b->runtime)))
    return "the table lacks a name, devices or a run time";
  if (!known_kind(b->device_kind)) return "unknown kind of device " + std::to_string(b->device_kind);
  if (b->num_devices > 0 && b->device_kind == PORTILE_DEVICE_CPU) return "the host is no device of a plug-in";
  if (const portile_runtime* r = b->runtime;
      r && !(r->allocate && r->release && r->copy && r->fill && r->stream_create && r->stream_destroy &&
             r->stream_wait && r->stream_capturing && r->event_create && r->event_destroy &&
             r->event_record && r->event_wait && r->event_elapsed))
    return "the run time lacks a function";
  for (int i = 0; i < b->num_devices; ++i) {
    const portile_device_info& d = b->devices[i];
    if (d.kind != b->device_kind || !std::memchr(d.name, 0, sizeof d.name) ||
        !std::memchr(d.arch, 0, sizeof d.arch))
      return "device " + std::to_string(i) + " is malformed";
  }
  if (b->num_implementations > 0 && !b->implementations) return "the table lacks its implementations";
  for (std::uint64_t i = 0; i < b->num_implementations; ++i) {
    const portile_implementation* e = b->implementations[i];
    if (!e || !e->op || !e->name || !e->archs || !e->supports || !e->launch || !known_kind(e->device_kind))
      return "implementation " + std::to_string(i) + " is incomplete";
    const op_info* op = find_operation(e->op);
    if (op && op->size != e->problem_size)
      return std::string(e->op) + " " + e->name + ": " +
             mismatch("size of the problem", e->problem_size, op->size);
  }
  return {};
}

status load_locked(state& s, const std::string& place) {
  // One file is one plug-in, by whatever path it is named; a path that leads nowhere is kept as given.
  std::error_code ec;
  const fs::path real = fs::canonical(place, ec);
  const std::string file = ec ? place : real.string();
  backend_info info;
  info.file = file;
  info.name = stem_of(file);
  const auto refuse = [&](std::string reason, status_code code = status_code::unsupported) {
    info.reason = std::move(reason);
    log("load", file + ": refused: " + info.reason);
    const auto before = std::find_if(s.backends.begin(), s.backends.end(),
                                     [&](const backend_info& b) { return b.file == file; });
    if (before == s.backends.end())
      s.backends.push_back(info);
    else
      *before = info;
    return status(code, file + ": " + info.reason);
  };
  for (const backend_info& b : s.backends)
    if (b.loaded && b.file == file) return {};
  if (ec) return refuse("cannot be read: " + ec.message());

  // RTLD_LOCAL keeps same-named inline and static symbols of two plug-ins apart. A refused plug-in stays
  // mapped when its entry has run: it may have registered process-wide handlers.
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* e = dlerror();
    return refuse(std::string("dlopen: ") + (e ? e : "unknown error"));
  }
  auto entry = reinterpret_cast<portile_backend_entry_fn>(dlsym(handle, PORTILE_BACKEND_SYMBOL));
  if (!entry) {
    dlclose(handle);
    return refuse("no symbol " PORTILE_BACKEND_SYMBOL);
  }
  const portile_backend* table = nullptr;
  char text[512] = "";
  const std::int32_t code = entry(&host_table, &table, text, sizeof text);
  text[sizeof text - 1] = 0;
  if (code != 0)
    return refuse(*text ? text : "the entry function failed with code " + std::to_string(code),
                  failure_code(code));
  if (std::string problem = table_problem(table); !problem.empty()) return refuse(std::move(problem));

  info.name = table->name;
  info.version = table->version ? table->version : "";
  info.loaded = true;
  info.table = table;
  if (table->no_device_reason && table->num_devices == 0) info.reason = table->no_device_reason;
  const bool kind_taken = std::any_of(s.backends.begin(), s.backends.end(), [&](const backend_info& b) {
    return b.table && !b.devices.empty() && b.table->device_kind == table->device_kind;
  });
  if (table->num_devices > 0 && kind_taken) {
    info.reason = "its devices are served by a backend loaded before";
  } else {
    for (int i = 0; i < table->num_devices; ++i)
      info.devices.emplace_back(static_cast<device_kind>(table->device_kind), table->devices[i].ordinal);
  }
  log("load", file + ": loaded " + info.name + ", " + std::to_string(table->num_implementations) +
                  " implementations, " + std::to_string(info.devices.size()) + " devices" +
                  (info.reason.empty() ? "" : ": " + info.reason));
  std::erase_if(s.backends, [&](const backend_info& b) { return b.file == file; });  // an earlier refusal
  s.backends.push_back(std::move(info));
  ++s.version;
  return {};
}

void scan(state& s) {
  if (s.scanned) return;
  s.scanned = true;  // before the work: a plug-in's entry function may log, and a log sink may come back here
  std::vector<std::string> places;
  if (const char* e = std::getenv("PORTILE_BACKEND_PATH"); e && *e) {
    std::string_view list = e;
    while (!list.empty()) {
      const auto colon = list.find(':');
      if (colon != 0) places.emplace_back(list.substr(0, colon));  // an empty entry is not the current folder
      list.remove_prefix(colon == std::string_view::npos ? list.size() : colon + 1);
    }
  } else if (!own_folder->empty()) {
    places.push_back(*own_folder);
  }
  for (const std::string& place : places) {
    std::error_code ec;
    std::vector<std::string> files;
    if (!fs::path(place).is_absolute()) {
      s.backends.push_back(
          {stem_of(place), place, false, "PORTILE_BACKEND_PATH: must be an absolute path", {}, {}, nullptr});
      log("load", place + ": refused: " + s.backends.back().reason);
    } else if (fs::is_directory(place, ec)) {
      for (fs::directory_iterator f(place, ec), end; !ec && f != end; f.increment(ec)) {
        const std::string name = f->path().filename().string();
        if (name.starts_with(file_prefix) && name.ends_with(".so")) files.push_back(f->path().string());
      }
      if (ec)
        s.backends.push_back(
            {stem_of(place), place, false, "cannot be read: " + ec.message(), {}, {}, nullptr});
    } else {
      files.push_back(place);
    }
    std::sort(files.begin(), files.end());
    for (const std::string& f : files) (void)load_locked(s, f);  // every refusal is kept in backends()
  }
}

state& scanned() {
  state& s = registry_state();
  const std::lock_guard lock(s.mutex);
  scan(s);
  return s;
}

}  // namespace

std::vector<backend_info> backends() {
  state& s = scanned();
  const std::lock_guard lock(s.mutex);
  return {s.backends.begin(), s.backends.end()};
}

status load_backend(const std::string& file) {
  state& s = scanned();
  const std::lock_guard lock(s.mutex);
  return load_locked(s, file);
}

std::vector<implementation_ref> implementations(std::string_view op) {
  state& s = scanned();
  const std::lock_guard lock(s.mutex);
  std::vector<implementation_ref> list;
  for (const bool with_runtime : {true, false})
    for (const backend_info& b : s.backends) {
      if (!b.loaded || (b.table->runtime != nullptr) != with_runtime) continue;
      for (std::uint64_t i = 0; i < b.table->num_implementations; ++i)
        if (op == b.table->implementations[i]->op) list.push_back({b.table->implementations[i], b.table});
    }
  const portile_backend& builtin = detail::builtin_backend();
  for (std::uint64_t i = 0; i < builtin.num_implementations; ++i)
    if (op == builtin.implementations[i]->op) list.push_back({builtin.implementations[i], &builtin});
  return list;
}

std::uint64_t detail::registry_version() {
  state& s = registry_state();
  // A run on every thread passes here: no lock once the plug-ins are loaded. While another thread loads them,
  // the version that it publishes at the end of each load makes later runs choose again.
  if (!s.scanned.load(std::memory_order_acquire)) (void)scanned();
  return s.version.load(std::memory_order_acquire);
}

namespace {

const backend_info* owner_of(state& s, device d) {
  for (const backend_info& b : s.backends)
    if (std::find(b.devices.begin(), b.devices.end(), d) != b.devices.end()) return &b;
  return nullptr;
}

[[noreturn]] void no_such_device(state& s, device d) {
  std::string text = "device " + d.text() + ": not on this node";
  for (const backend_info& b : s.backends)
    if (!b.reason.empty()) text += "; " + b.name + ": " + b.reason;
  throw error(status_code::invalid_argument, text);
}

}  // namespace

const portile_runtime& detail::runtime_of(device d) {
  if (d == device{}) return cpu_runtime();
  state& s = scanned();
  const std::lock_guard lock(s.mutex);
  if (const backend_info* b = owner_of(s, d)) return *b->table->runtime;
  no_such_device(s, d);
}

const portile_device_info& device::info() const {
  if (*this == device{}) return detail::cpu_info();
  state& s = scanned();
  const std::lock_guard lock(s.mutex);
  if (const backend_info* b = owner_of(s, *this))
    for (int i = 0; i < b->table->num_devices; ++i)
      if (b->table->devices[i].ordinal == ordinal_) return b->table->devices[i];
  no_such_device(s, *this);
}

std::vector<device> device::all() {
  std::vector<device> list;
  for (const backend_info& b : backends()) list.insert(list.end(), b.devices.begin(), b.devices.end());
  list.emplace_back();
  return list;
}

}  // namespace portile

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>

#include <portile/core/log.hpp>

namespace portile {
namespace {

using sink_function = std::function<void(std::string_view, std::string_view)>;

struct state {
  std::atomic<bool> any = false;  ///< no channel is on: the common case costs one load
  std::mutex mutex;
  std::set<std::string, std::less<>> channels;
  std::shared_ptr<sink_function> sink;
};

void split_into(std::set<std::string, std::less<>>& set, std::string_view list) {
  while (!list.empty()) {
    const auto comma = list.find(',');
    if (comma != 0) set.emplace(list.substr(0, comma));
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
}

// Leaked on purpose: a plug-in may log while static objects are being destroyed.
state& log_state() {
  static state* s = [] {
    auto* fresh = new state;
    if (const char* e = std::getenv("PORTILE_LOG")) split_into(fresh->channels, e);
    fresh->any = !fresh->channels.empty();
    return fresh;
  }();
  return *s;
}

}  // namespace

void set_log_channels(std::string_view list) {
  state& s = log_state();
  const std::lock_guard lock(s.mutex);
  s.channels.clear();
  split_into(s.channels, list);
  s.any = !s.channels.empty();
}

void set_log_sink(std::function<void(std::string_view, std::string_view)> sink) {
  auto fresh = sink ? std::make_shared<sink_function>(std::move(sink)) : nullptr;
  state& s = log_state();
  const std::lock_guard lock(s.mutex);
  s.sink.swap(fresh);
}

bool log_enabled(std::string_view channel) {
  state& s = log_state();
  if (!s.any.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(s.mutex);
  return s.channels.contains(channel) || s.channels.contains("all");
}

void log(std::string_view channel, std::string_view text) {
  if (!log_enabled(channel)) return;
  state& s = log_state();
  std::shared_ptr<sink_function> sink;
  {
    const std::lock_guard lock(s.mutex);
    sink = s.sink;
  }
  // Called without the lock: a sink may log, call Portile or wait for a lock of its own (an interpreter's)
  // without a deadlock. A sink that throws loses its line, not the launch it belongs to.
  try {
    if (sink)
      (*sink)(channel, text);
    else
      std::fprintf(stderr, "portile: %.*s: %.*s\n", static_cast<int>(channel.size()), channel.data(),
                   static_cast<int>(text.size()), text.data());
  } catch (...) {
  }
}

}  // namespace portile

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>

#include <portile/core/log.hpp>

namespace portile {
namespace {

struct state {
  std::mutex mutex;
  std::set<std::string, std::less<>> channels;
  std::function<void(std::string_view, std::string_view)> sink;
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
}

void set_log_sink(std::function<void(std::string_view, std::string_view)> sink) {
  state& s = log_state();
  const std::lock_guard lock(s.mutex);
  s.sink = std::move(sink);
}

bool log_enabled(std::string_view channel) {
  state& s = log_state();
  const std::lock_guard lock(s.mutex);
  return s.channels.contains(channel) || s.channels.contains("all");
}

void log(std::string_view channel, std::string_view text) {
  if (!log_enabled(channel)) return;
  state& s = log_state();
  const std::lock_guard lock(s.mutex);
  if (s.sink)
    s.sink(channel, text);
  else
    std::fprintf(stderr, "portile: %.*s: %.*s\n", static_cast<int>(channel.size()), channel.data(),
                 static_cast<int>(text.size()), text.data());
}

}  // namespace portile

#pragma once
#include <functional>
#include <string>
#include <string_view>

#include <portile/core/export.hpp>

namespace portile {

/// Channels of the log: "load" (plug-ins), "dispatch" (which implementation and why), "launch" (each launch).
/// PORTILE_LOG=load,dispatch,launch turns them on ("all" for every one); these calls win over the
/// environment.
PORTILE_API void set_log_channels(std::string_view comma_separated);
/// Where lines go; the default writes "portile: <channel>: <text>" to standard error. An empty function
/// restores it. It may be called from several threads at once, and once more by a thread that is already
/// logging; what it throws is dropped.
PORTILE_API void set_log_sink(std::function<void(std::string_view channel, std::string_view text)> sink);
PORTILE_API bool log_enabled(std::string_view channel);
PORTILE_API void log(std::string_view channel, std::string_view text);

}  // namespace portile

#include <portile/core/status.hpp>

namespace portile {

const char* to_string(status_code code) {
  switch (code) {
    case status_code::ok:
      return "ok";
    case status_code::invalid_argument:
      return "invalid_argument";
    case status_code::unsupported:
      return "unsupported";
    case status_code::data_error:
      return "data_error";
    case status_code::out_of_memory:
      return "out_of_memory";
    case status_code::device_error:
      return "device_error";
    case status_code::capture_unsafe:
      return "capture_unsafe";
    case status_code::internal:
      return "internal";
  }
  return "unknown";
}

void status::or_throw() const {
  if (!ok()) throw error(code_, text_);
}

data_error::data_error(std::string op, std::string rule, std::int64_t index)
    : error(status_code::data_error, op + ": data at index " + std::to_string(index) + ": " + rule),
      op_(std::move(op)),
      rule_(std::move(rule)),
      index_(index) {}

}  // namespace portile

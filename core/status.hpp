#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <portile/core/export.hpp>

namespace portile {

/// Outcome of a call. The numbers are part of the plug-in ABI.
enum class status_code : std::int32_t {
  ok = 0,
  invalid_argument = 1,  ///< seen in the metadata; nothing was launched, nothing written
  unsupported = 2,       ///< legal, but no implementation takes it on this device
  data_error = 3,        ///< seen in the data of a `checked` queue
  out_of_memory = 4,
  device_error = 5,    ///< the vendor's run time reported an error
  capture_unsafe = 6,  ///< the call would allocate or synchronise while the stream is being captured
  internal = 7,
};

PORTILE_API const char* to_string(status_code code);
/// The code with this number; internal for numbers that stand for none, and for 0, where the call is known to
/// have failed.
constexpr status_code failure_code(std::int32_t number) {
  return number > 0 && number <= 7 ? static_cast<status_code>(number) : status_code::internal;
}

/// A code and, unless it is ok, a sentence that names the argument, its value and the broken rule.
class [[nodiscard]] status {
 public:
  status() = default;
  status(status_code code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == status_code::ok; }
  status_code code() const { return code_; }
  const std::string& text() const { return text_; }
  /// Throws portile::error unless ok.
  PORTILE_API void or_throw() const;

 private:
  status_code code_ = status_code::ok;
  std::string text_;
};

class PORTILE_API error : public std::runtime_error {
 public:
  error(status_code code, const std::string& text) : std::runtime_error(text), code_(code) {}
  status_code code() const { return code_; }

 private:
  status_code code_;
};

/// What `queue::wait` throws when an operation on a `checked` queue met data its contract forbids.
class PORTILE_API data_error : public error {
 public:
  data_error(std::string op, std::string rule, std::int64_t index);
  const std::string& op() const { return op_; }
  const std::string& rule() const { return rule_; }
  std::int64_t index() const { return index_; }  ///< flat index of the first offending element

 private:
  std::string op_, rule_;
  std::int64_t index_;
};

}  // namespace portile

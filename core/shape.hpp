#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <portile/core/export.hpp>

namespace portile {

/// Whole-number formula over named dimensions and attributes: + - * / (floor), parentheses, ceil(a, b) =
/// ceil(a / b), align(a, b), max(a, b), min(a, b), and a ? b : c with a being zero or not. `field.type` is 1
/// where the tensor of that field has this element type ("b.e2m1x2"), else 0; an absent tensor counts as
/// having the first type of its field.
class formula {
 public:
  using lookup = std::function<std::optional<std::int64_t>(std::string_view)>;

  formula() = default;
  /// Throws error(internal) when the text is no formula.
  PORTILE_API explicit formula(std::string_view text);

  const std::string& text() const { return text_; }
  /// Empty when a name is unknown, or something is divided by zero.
  PORTILE_API std::optional<std::int64_t> evaluate(const lookup& names) const;
  /// If the formula is `name`, `name + c` or `name - c`: the name and c with its sign.
  PORTILE_API std::optional<std::pair<std::string, std::int64_t>> linear() const;
  PORTILE_API std::vector<std::string> names() const;

 private:
  std::string text_;
};

/// Shape of a tensor field: one list of formulas for each rank it may have. Written as
/// "num_tokens, hidden_size" or "num_tokens, hidden_size | batch, num_tokens, hidden_size"; "..." as the
/// first entry stands for any number of leading dimensions; "" is a single element of rank 0.
struct shape_spec {
  struct alternative {
    bool open = false;  ///< begins with "..."
    std::vector<formula> extents;
  };
  std::vector<alternative> alternatives;
  std::string text;
  PORTILE_API static shape_spec parse(std::string_view text);
};

}  // namespace portile

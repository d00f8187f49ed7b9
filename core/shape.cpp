#include <algorithm>
#include <cctype>
#include <charconv>

#include <portile/core/shape.hpp>
#include <portile/core/status.hpp>

namespace portile {
namespace {

using value = std::optional<std::int64_t>;

// A result that does not fit has no value: a shape with it matches nothing.
value add(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  return __builtin_add_overflow(a, b, &r) ? value{} : value{r};
}
value subtract(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  return __builtin_sub_overflow(a, b, &r) ? value{} : value{r};
}
value multiply(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  return __builtin_mul_overflow(a, b, &r) ? value{} : value{r};
}
// Floor and ceiling for either sign of a; b > 0.
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0); }

// Recursive descent over the text; shapes are evaluated a few times per call of an operation, on strings of a
// few characters, so there is no compiled form.
class parser {
 public:
  parser(std::string_view text, const formula::lookup& names, std::vector<std::string>* seen)
      : text_(text), names_(names), seen_(seen) {}

  value whole() {
    value v = conditional();
    skip();
    if (at_ != text_.size()) fail();
    return v;
  }

 private:
  [[noreturn]] void fail() const {
    throw error(status_code::internal,
                "formula '" + std::string(text_) + "': syntax error at column " + std::to_string(at_));
  }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void need(char c) {
    if (!take(c)) fail();
  }
  template <class F>
  static value both(value a, value b, F f) {
    return a && b ? f(*a, *b) : value{};
  }

  value conditional() {
    value c = sum();
    if (!take('?')) return c;
    value yes = conditional();
    need(':');
    value no = conditional();
    return c ? (*c ? yes : no) : value{};
  }
  value sum() {
    value v = product();
    for (;;) {
      if (take('+'))
        v = both(v, product(), [](auto a, auto b) { return add(a, b); });
      else if (take('-'))
        v = both(v, product(), [](auto a, auto b) { return subtract(a, b); });
      else
        return v;
    }
  }
  value product() {
    value v = atom();
    for (;;) {
      if (take('*'))
        v = both(v, atom(), [](auto a, auto b) { return multiply(a, b); });
      else if (take('/'))
        v = both(v, atom(), [](auto a, auto b) { return b > 0 ? value{floor_div(a, b)} : value{}; });
      else
        return v;
    }
  }
  value atom() {
    skip();
    if (take('(')) {
      value v = conditional();
      need(')');
      return v;
    }
    const std::size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_' || text_[at_] == '.'))
      ++at_;
    if (start == at_) fail();
    const std::string_view token = text_.substr(start, at_ - start);
    if (std::isdigit(static_cast<unsigned char>(token[0]))) {
      std::int64_t v = 0;
      const auto r = std::from_chars(token.data(), token.data() + token.size(), v);
      if (r.ec != std::errc{} || r.ptr != token.data() + token.size()) fail();
      return v;
    }
    if (!take('(')) {
      if (seen_) seen_->emplace_back(token);
      return names_(token);
    }
    value a = conditional();
    need(',');
    value b = conditional();
    need(')');
    if (token == "ceil")
      return both(a, b, [](auto x, auto y) { return y > 0 ? value{ceil_div(x, y)} : value{}; });
    if (token == "align")
      return both(a, b, [](auto x, auto y) { return y > 0 ? multiply(ceil_div(x, y), y) : value{}; });
    if (token == "max") return both(a, b, [](auto x, auto y) { return value{std::max(x, y)}; });
    if (token == "min") return both(a, b, [](auto x, auto y) { return value{std::min(x, y)}; });
    fail();
  }

  std::string_view text_;
  const formula::lookup& names_;
  std::vector<std::string>* seen_;
  std::size_t at_ = 0;
};

std::string trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return std::string(s);
}

// Splits at `separator` outside parentheses.
std::vector<std::string> split(std::string_view s, char separator) {
  std::vector<std::string> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= s.size(); ++i) {
    if (i == s.size() || (s[i] == separator && depth == 0)) {
      parts.push_back(trim(s.substr(start, i - start)));
      start = i + 1;
    } else {
      depth += (s[i] == '(') - (s[i] == ')');
    }
  }
  return parts;
}

}  // namespace

formula::formula(std::string_view text) : text_(trim(text)) { names(); }

std::optional<std::int64_t> formula::evaluate(const lookup& names) const {
  return parser(text_, names, nullptr).whole();
}

std::vector<std::string> formula::names() const {
  std::vector<std::string> seen;
  const lookup one = [](std::string_view) { return std::optional<std::int64_t>{1}; };
  parser(text_, one, &seen).whole();
  return seen;
}

std::optional<std::pair<std::string, std::int64_t>> formula::linear() const {
  std::size_t i = 0;
  while (i < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[i])) || text_[i] == '_')) ++i;
  if (i == 0 || std::isdigit(static_cast<unsigned char>(text_[0]))) return {};
  const std::string name = text_.substr(0, i);
  std::string rest;
  for (char c : text_.substr(i))
    if (c != ' ') rest += c;
  if (rest.empty()) return std::pair{name, std::int64_t{0}};
  if ((rest[0] != '+' && rest[0] != '-') || rest.size() < 2 ||
      !std::all_of(rest.begin() + 1, rest.end(), [](unsigned char c) { return std::isdigit(c); }))
    return {};
  return std::pair{name, std::int64_t{std::stoll(rest)}};
}

shape_spec shape_spec::parse(std::string_view text) {
  shape_spec spec;
  spec.text = trim(text);
  for (const std::string& one : split(text, '|')) {
    alternative a;
    if (!one.empty())
      for (const std::string& e : split(one, ',')) {
        if (e == "..." && a.extents.empty() && !a.open)
          a.open = true;
        else
          a.extents.emplace_back(e);
      }
    spec.alternatives.push_back(std::move(a));
  }
  return spec;
}

}  // namespace portile

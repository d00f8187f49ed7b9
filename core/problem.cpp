#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include <portile/core/check.hpp>
#include <portile/core/problem.hpp>

namespace portile {
namespace {

template <class T>
const T& at(const void* problem, std::size_t offset) {
  return *reinterpret_cast<const T*>(static_cast<const char*>(problem) + offset);
}
template <class T>
T& at(void* problem, std::size_t offset) {
  return *reinterpret_cast<T*>(static_cast<char*>(problem) + offset);
}

template <class T>
std::optional<T> parse_number(std::string_view s) {
  T v{};
  const auto r = std::from_chars(s.data(), s.data() + s.size(), v);
  if (r.ec != std::errc{} || r.ptr != s.data() + s.size()) return {};
  return v;
}

[[noreturn]] void bad_attribute(const field_info& f, std::string_view value, const std::string& rule) {
  throw error(status_code::invalid_argument, f.name + " = '" + std::string(value) + "': " + rule);
}

}  // namespace

std::string detail::show(double v) {
  char buffer[64];
  const auto r = std::to_chars(buffer, buffer + sizeof buffer, v);
  return {buffer, r.ptr};
}

std::string field_info::attribute_text(const void* p) const {
  switch (type) {
    case attribute_type::boolean:
      return at<bool>(p, offset) ? "true" : "false";
    case attribute_type::integer:
      return std::to_string(at<std::int64_t>(p, offset));
    case attribute_type::real:
      return detail::show(at<double>(p, offset));
    case attribute_type::text:
      return std::string(at<word>(p, offset).view());
    case attribute_type::optional_integer:
      return detail::show(at<std::optional<std::int64_t>>(p, offset));
    case attribute_type::optional_real:
      return detail::show(at<std::optional<double>>(p, offset));
  }
  return {};
}

void field_info::set_attribute(void* p, std::string_view v) const {
  const auto integer = [&] {
    if (auto n = parse_number<std::int64_t>(v)) return *n;
    bad_attribute(*this, v, "must be a whole number");
  };
  const auto real = [&] {
    if (auto n = parse_number<double>(v)) return *n;
    bad_attribute(*this, v, "must be a number");
  };
  switch (type) {
    case attribute_type::boolean:
      if (v != "true" && v != "false" && v != "1" && v != "0")
        bad_attribute(*this, v, "must be true or false");
      at<bool>(p, offset) = v == "true" || v == "1";
      return;
    case attribute_type::integer:
      at<std::int64_t>(p, offset) = integer();
      return;
    case attribute_type::real:
      at<double>(p, offset) = real();
      return;
    case attribute_type::text:
      if (v.size() > word::capacity) bad_attribute(*this, v, "must have at most 31 characters");
      at<word>(p, offset) = word(v);
      return;
    case attribute_type::optional_integer:
      at<std::optional<std::int64_t>>(p, offset) = v == "none" ? std::optional<std::int64_t>{} : integer();
      return;
    case attribute_type::optional_real:
      at<std::optional<double>>(p, offset) = v == "none" ? std::optional<double>{} : real();
      return;
  }
}

bool field_info::same_attribute(const void* a, const void* b) const {
  const auto bits = [](const void* p, const void* q, std::size_t n) { return std::memcmp(p, q, n) == 0; };
  // Not the bytes of the optional itself: its padding, and the value of an empty one, are indeterminate.
  const auto optional = [&]<class T>(const std::optional<T>& x, const std::optional<T>& y) {
    return x.has_value() == y.has_value() && (!x || bits(&*x, &*y, sizeof(T)));
  };
  const void *x = static_cast<const char*>(a) + offset, *y = static_cast<const char*>(b) + offset;
  switch (type) {
    case attribute_type::boolean:
      return at<bool>(a, offset) == at<bool>(b, offset);
    case attribute_type::integer:
      return bits(x, y, sizeof(std::int64_t));
    case attribute_type::real:
      return bits(x, y, sizeof(double));
    case attribute_type::text:
      return at<word>(a, offset) == at<word>(b, offset);
    case attribute_type::optional_integer:
      return optional(at<std::optional<std::int64_t>>(a, offset), at<std::optional<std::int64_t>>(b, offset));
    case attribute_type::optional_real:
      return optional(at<std::optional<double>>(a, offset), at<std::optional<double>>(b, offset));
  }
  return false;
}

std::optional<std::int64_t> field_info::attribute_number(const void* p) const {
  switch (type) {
    case attribute_type::boolean:
      return at<bool>(p, offset);
    case attribute_type::integer:
      return at<std::int64_t>(p, offset);
    case attribute_type::optional_integer:
      return at<std::optional<std::int64_t>>(p, offset);
    default:
      return {};
  }
}

const field_info* op_info::find(std::string_view field) const {
  for (const field_info& f : fields)
    if (f.name == field) return &f;
  return nullptr;
}
bool op_info::is_dimension(std::string_view n) const {
  return std::find(dimensions.begin(), dimensions.end(), n) != dimensions.end();
}
bool op_info::is_ignored(std::string_view n) const {
  return std::find(ignored.begin(), ignored.end(), n) != ignored.end();
}

void complete(op_info& op) {
  op.family = op.name.substr(0, op.name.find('.'));
  std::set<std::string> names;
  for (const field_info& f : op.fields)
    for (const auto& a : f.shape.alternatives)
      for (const formula& e : a.extents)
        for (std::string& n : e.names())
          if (!op.find(n) && n.find('.') == std::string::npos) names.insert(std::move(n));
  op.dimensions.assign(names.begin(), names.end());
}

tensor& any_problem::operator[](std::string_view name) {
  const field_info* f = op_->find(name);
  if (!f || f->kind != field_kind::tensor)
    throw error(status_code::invalid_argument, op_->name + ": " + std::string(name) + ": no such tensor");
  return f->tensor_in(problem_.get());
}

void any_problem::set(std::string_view name, std::string_view value) {
  const field_info* f = op_->find(name);
  if (!f || f->kind != field_kind::attribute)
    throw error(status_code::invalid_argument, op_->name + ": " + std::string(name) + ": no such attribute");
  try {
    f->set_attribute(problem_.get(), value);
  } catch (const error& e) {
    throw error(e.code(), op_->name + ": " + e.what());
  }
}

const op_info* find_operation(std::string_view name) {
  const auto& all = operations();
  const auto it = std::lower_bound(all.begin(), all.end(), name,
                                   [](const op_info& o, std::string_view n) { return o.name < n; });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

const op_info& get_operation(std::string_view name) {
  if (const op_info* op = find_operation(name)) return *op;
  throw error(status_code::invalid_argument, "operation '" + std::string(name) + "': unknown");
}

}  // namespace portile

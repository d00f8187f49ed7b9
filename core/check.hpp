#pragma once
#include <concepts>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <portile/core/problem.hpp>

namespace portile {

/// Names and values that shapes are made of: the attributes of a problem and the dimensions bound to extents.
class environment {
 public:
  environment() = default;
  environment(const op_info& op, const void* problem) : op_(&op), problem_(problem) {}
  PORTILE_API std::optional<std::int64_t> find(std::string_view name) const;
  void bind(std::string_view name, std::int64_t value) { dims_.insert_or_assign(std::string(name), value); }
  formula::lookup lookup() const {
    return [this](std::string_view n) { return find(n); };
  }

 private:
  const op_info* op_ = nullptr;
  const void* problem_ = nullptr;
  std::map<std::string, std::int64_t, std::less<>> dims_;
};

/// Extents, in stored elements, that a field has with this element type; empty and `missing` filled when a
/// name in its shape is unknown. Of several alternatives the longest one that is known counts.
PORTILE_API std::optional<std::vector<std::int64_t>> declared_extents(const field_info& f, dtype type,
                                                                      const environment& env,
                                                                      std::string& missing);

/// Binds every dimension that the extents of the given tensors determine.
PORTILE_API void bind_dimensions(const op_info& op, const void* problem, environment& env);

namespace detail {
inline std::string show(std::string_view v) { return std::string(v); }
inline std::string show(const char* v) { return v; }
inline std::string show(const word& v) { return "'" + std::string(v.view()) + "'"; }
inline std::string show(bool v) { return v ? "true" : "false"; }
inline std::string show(dtype v) { return std::string(to_string(v)); }
inline std::string show(const tensor& v) { return v.text(); }
PORTILE_API std::string show(double v);
template <std::integral I>
std::string show(I v) {
  return std::to_string(v);
}
template <class T>
std::string show(const std::optional<T>& v) {
  return v ? show(*v) : "none";
}
}  // namespace detail

/// What P::check writes its rules with. Only the first broken rule is kept; its text is
/// "<op>: <argument> = <value>: <rule>". The declared rules (presence, dtype, shape, strides, alignment) have
/// passed when P::check runs, so it may use every dimension and every required tensor.
class checker {
 public:
  PORTILE_API checker(const op_info& op, const void* problem);

  bool ok() const { return result_.ok(); }
  const status& result() const { return result_; }

  /// Value of a dimension name; 0 when nothing binds it.
  std::int64_t dim(std::string_view name) const { return env_.find(name).value_or(0); }
  const environment& env() const { return env_; }

  /// False, and the rule is recorded, unless `fine`. Use as `if (!c.need(...)) return;` where later rules
  /// depend on it.
  template <class V>
  bool need(bool fine, std::string_view argument, const V& value, std::string_view rule) {
    if (!fine && ok()) fail(argument, detail::show(value), rule);
    return fine;
  }
  template <class V>
  bool need_one_of(std::string_view argument, const V& value, std::initializer_list<V> legal) {
    std::string rule = "must be one of ";
    bool found = false, first = true;
    for (const V& v : legal) {
      found = found || v == value;
      rule += (first ? "" : ", ") + detail::show(v);
      first = false;
    }
    return need(found, argument, value, rule);
  }
  /// Both given or both absent.
  bool need_both_or_none(std::string_view a, bool has_a, std::string_view b, bool has_b) {
    return need(has_a == has_b, has_a ? b : a, "absent",
                "must be given together with " + std::string(has_a ? a : b));
  }
  bool need_multiple(std::string_view argument, std::int64_t value, std::int64_t of) {
    return need(of > 0 && value % of == 0, argument, value, "must be a multiple of " + std::to_string(of));
  }

 private:
  friend status check(const op_info&, const void*);
  PORTILE_API void fail(std::string_view argument, const std::string& value, std::string_view rule);
  void declared_rules();
  void check_tensor(const field_info& f, const tensor& t, const std::string& name);
  void check_shape(const field_info& f, const tensor& t, const std::string& name);

  const op_info& op_;
  const void* problem_;
  environment env_;
  status result_;
};

/// Shape, type and strides of one output, as `infer` gives it.
struct output_spec {
  std::string field;
  portile::dtype dtype = portile::dtype::none;
  std::vector<std::int64_t> extents;  ///< in stored elements
  std::vector<std::int64_t> strides;
  bool worst_case = false;  ///< the extent depends on the data; this is its upper bound
};

/// What P::infer writes its outputs with. Inputs, attributes and dimensions are known; outputs need not be
/// set.
class inference {
 public:
  PORTILE_API inference(const op_info& op, const void* problem, environment env);

  std::int64_t dim(std::string_view name) const { return env_.find(name).value_or(0); }
  void bind(std::string_view name, std::int64_t value) { env_.bind(name, value); }
  /// Contiguous, with the declared shape. A given tensor keeps its own dtype unless `type` says otherwise.
  PORTILE_API output_spec& out(std::string_view field, dtype type);
  /// With extents (stored elements) and strides of its own.
  PORTILE_API output_spec& out(std::string_view field, dtype type, std::vector<std::int64_t> extents,
                               std::vector<std::int64_t> strides);
  const std::vector<output_spec>& outputs() const { return outputs_; }

 private:
  const op_info& op_;
  environment env_;
  std::vector<output_spec> outputs_;
};

/// Validation only: declared rules, then P::check. Touches no device and no data.
PORTILE_API status check(const op_info& op, const void* problem);
/// Shape and dtype of every output that these inputs and options give; throws invalid_argument when a
/// dimension is missing.
PORTILE_API std::vector<output_spec> infer(const op_info& op, const void* problem);
PORTILE_API std::vector<output_spec> infer(const op_info& op, const void* problem, environment env);

template <class P>
status check(const P& problem) {
  return check(operation_of<P>(), &problem);
}
template <class P>
std::vector<output_spec> infer(const P& problem) {
  return infer(operation_of<P>(), &problem);
}

}  // namespace portile

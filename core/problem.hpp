#pragma once
// A problem struct *is* the operation: an aggregate with the inputs, outputs and options of one call. It
// declares its fields once, in `describe`, and everything that walks fields (checks, explain, verify,
// bindings, docs) reads that.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <portile/core/shape.hpp>
#include <portile/core/status.hpp>
#include <portile/core/tensor.hpp>
#include <portile/core/word.hpp>

namespace portile {

class checker;
class inference;

enum class field_kind { tensor, tensor_list, attribute };
enum class field_role { in, out, inout };
enum class attribute_type { boolean, integer, real, text, optional_integer, optional_real };

/// What strides a tensor field takes. Outputs never overlap themselves, whatever the rule.
enum class layout_rule {
  any,         ///< any non-negative strides
  unit_last,   ///< last stride 1 (or last extent at most 1), the others free: rows may be a slice of a wider
               ///< matrix
  contiguous,  ///< row-major without gaps
};

struct field_info {
  std::string name;
  field_kind kind = field_kind::tensor;
  field_role role = field_role::in;
  std::string text;  ///< one-line meaning
  std::size_t offset = 0;
  // tensors
  portile::dtypes types;
  shape_spec shape;
  layout_rule layout = layout_rule::unit_last;
  bool is_optional = false;
  bool on_host = false;               ///< lives in host memory whatever the queue's device
  std::optional<formula> packs_rows;  ///< when not 0, a packed type packs along the next to last dimension
  // attributes
  attribute_type type = attribute_type::integer;
  std::vector<std::string> choices;  ///< legal values of a text attribute; empty: the operation checks

  /// Chained by `describe`.
  field_info& optional() { return is_optional = true, *this; }
  field_info& host() { return on_host = true, *this; }
  field_info& any_strides() { return layout = layout_rule::any, *this; }
  field_info& contiguous() { return layout = layout_rule::contiguous, *this; }
  field_info& rows_packed(std::string_view when = "1") { return packs_rows = formula(when), *this; }
  field_info& one_of(std::vector<std::string> values) { return choices = std::move(values), *this; }

  const tensor& tensor_in(const void* problem) const {
    return *reinterpret_cast<const tensor*>(static_cast<const char*>(problem) + offset);
  }
  tensor& tensor_in(void* problem) const {
    return *reinterpret_cast<tensor*>(static_cast<char*>(problem) + offset);
  }
  tensor_list& list_in(void* problem) const {
    return *reinterpret_cast<tensor_list*>(static_cast<char*>(problem) + offset);
  }
  const tensor_list& list_in(const void* problem) const {
    return *reinterpret_cast<const tensor_list*>(static_cast<const char*>(problem) + offset);
  }
  /// The attribute as text: "true", "128", "0.5", "none" for an optional one without a value.
  PORTILE_API std::string attribute_text(const void* problem) const;
  /// Sets the attribute from such a text; throws invalid_argument.
  PORTILE_API void set_attribute(void* problem, std::string_view value) const;
  /// Same value of the attribute in both, compared as bits; no text is made.
  PORTILE_API bool same_attribute(const void* a, const void* b) const;
  /// The attribute as a whole number, where it has one (booleans count).
  PORTILE_API std::optional<std::int64_t> attribute_number(const void* problem) const;
};

/// A size rule of the peers and what Portile does with it: the docs and the tests walk these.
struct limit_info {
  std::string rule;
  bool kept = false;
};

/// All that is known of an operation.
struct op_info {
  std::string name;    ///< "quant.per_token_cast"
  std::string family;  ///< "quant"
  std::string summary;
  std::string tolerance;  ///< "bits", or the bound in words
  bool deterministic = true;
  bool capture_safe = true;
  std::string capture_note;
  std::vector<field_info> fields;
  std::vector<std::string> dimensions;  ///< names that stand for extents
  std::vector<std::string> ignored;     ///< params of manifests that say nothing new
  std::vector<limit_info> limits;
  std::vector<std::string> traps;  ///< rules that only the data can break; the index is the rule's number

  std::size_t size = 0;
  std::shared_ptr<void> (*make)() = nullptr;
  void (*assign)(void* to, const void* from) = nullptr;
  void (*check)(const void* problem, checker& c) = nullptr;
  void (*infer)(const void* problem, inference& i) = nullptr;

  PORTILE_API const field_info* find(std::string_view field) const;
  PORTILE_API bool is_dimension(std::string_view name) const;
  PORTILE_API bool is_ignored(std::string_view name) const;
};

namespace detail {
template <class T>
struct attribute_of;
template <>
struct attribute_of<bool> {
  static constexpr auto type = attribute_type::boolean;
};
template <>
struct attribute_of<std::int64_t> {
  static constexpr auto type = attribute_type::integer;
};
template <>
struct attribute_of<double> {
  static constexpr auto type = attribute_type::real;
};
template <>
struct attribute_of<word> {
  static constexpr auto type = attribute_type::text;
};
template <>
struct attribute_of<std::optional<std::int64_t>> {
  static constexpr auto type = attribute_type::optional_integer;
};
template <>
struct attribute_of<std::optional<double>> {
  static constexpr auto type = attribute_type::optional_real;
};
}  // namespace detail

/// Collects what `P::describe` says.
template <class P>
class description {
 public:
  explicit description(op_info& op) : op_(op) {}

  void summary(std::string text) { op_.summary = std::move(text); }
  /// "bits", or the bound in words.
  void tolerance(std::string text) { op_.tolerance = std::move(text); }
  /// Says when a call is not capture-safe; without it every call is.
  void capture_unsafe(std::string when) {
    op_.capture_safe = false;
    op_.capture_note = std::move(when);
  }

  field_info& in(const char* name, tensor P::*m, const char* shape, dtypes types, const char* text) {
    return add_tensor(name, m, field_role::in, shape, types, text);
  }
  field_info& out(const char* name, tensor P::*m, const char* shape, dtypes types, const char* text) {
    return add_tensor(name, m, field_role::out, shape, types, text);
  }
  field_info& inout(const char* name, tensor P::*m, const char* shape, dtypes types, const char* text) {
    return add_tensor(name, m, field_role::inout, shape, types, text);
  }
  /// Lists: `shape` is the one of each element.
  field_info& list(field_role role, const char* name, tensor_list P::*m, const char* shape, dtypes types,
                   const char* text) {
    field_info& f = add(name, offset_of(m), text);
    f.kind = field_kind::tensor_list;
    f.role = role;
    f.types = types;
    f.shape = shape_spec::parse(shape);
    return f;
  }
  template <class T>
  field_info& attribute(const char* name, T P::*m, const char* text) {
    field_info& f = add(name, offset_of(m), text);
    f.kind = field_kind::attribute;
    f.type = detail::attribute_of<T>::type;
    return f;
  }
  /// Params of golden manifests that carry nothing an array does not say.
  void ignored(std::initializer_list<const char*> names) {
    op_.ignored.insert(op_.ignored.end(), names.begin(), names.end());
  }
  /// A size or layout rule of the peer's that Portile keeps (check() enforces it) or lifts.
  void kept(std::string rule) { op_.limits.push_back({std::move(rule), true}); }
  void lifted(std::string rule) { op_.limits.push_back({std::move(rule), false}); }
  /// Declares the next trap rule; numbers count from 0.
  void trap(std::string rule) { op_.traps.push_back(std::move(rule)); }

 private:
  template <class T>
  static std::size_t offset_of(T P::*m) {
    static const P sample{};
    return static_cast<std::size_t>(reinterpret_cast<const char*>(&(sample.*m)) -
                                    reinterpret_cast<const char*>(&sample));
  }
  field_info& add(const char* name, std::size_t offset, const char* text) {
    field_info f;
    f.name = name;
    f.offset = offset;
    f.text = text;
    op_.fields.push_back(std::move(f));
    return op_.fields.back();
  }
  field_info& add_tensor(const char* name, tensor P::*m, field_role role, const char* shape, dtypes types,
                         const char* text) {
    field_info& f = add(name, offset_of(m), text);
    f.role = role;
    f.types = types;
    f.shape = shape_spec::parse(shape);
    return f;
  }
  op_info& op_;
};

/// Fills in what follows from the fields (dimension names, family).
PORTILE_API void complete(op_info& op);

template <class P>
op_info make_op_info() {
  static_assert(std::is_trivially_copyable_v<P>, "a problem crosses the plug-in boundary as plain bytes");
  op_info op;
  op.name = P::name;
  description<P> d(op);
  P::describe(d);
  op.size = sizeof(P);
  op.make = []() -> std::shared_ptr<void> { return std::make_shared<P>(); };
  op.assign = [](void* to, const void* from) { *static_cast<P*>(to) = *static_cast<const P*>(from); };
  op.check = [](const void* p, checker& c) { static_cast<const P*>(p)->check(c); };
  op.infer = [](const void* p, inference& i) { static_cast<const P*>(p)->infer(i); };
  complete(op);
  return op;
}

/// Every operation libportile knows, sorted by name.
PORTILE_API const std::vector<op_info>& operations();
/// Null when there is none of this name.
PORTILE_API const op_info* find_operation(std::string_view name);
/// Throws invalid_argument when there is none of this name.
PORTILE_API const op_info& get_operation(std::string_view name);

/// The operation of a problem struct, looked up once.
template <class P>
const op_info& operation_of() {
  static const op_info& op = get_operation(P::name);
  return op;
}

/// A problem whose operation is known at run time only. Owns the struct, not the tensors' memory.
class any_problem {
 public:
  explicit any_problem(const op_info& op) : op_(&op), problem_(op.make()) {}
  any_problem(const any_problem& o) : any_problem(*o.op_) { op_->assign(problem_.get(), o.problem_.get()); }
  any_problem& operator=(const any_problem&) = delete;
  any_problem(any_problem&&) = default;

  const op_info& op() const { return *op_; }
  void* get() { return problem_.get(); }
  const void* get() const { return problem_.get(); }
  PORTILE_API tensor& operator[](std::string_view tensor_field);  ///< throws invalid_argument
  PORTILE_API void set(std::string_view attribute, std::string_view value);

 private:
  const op_info* op_;
  std::shared_ptr<void> problem_;
};

}  // namespace portile

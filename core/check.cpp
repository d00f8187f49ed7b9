#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <portile/core/check.hpp>

namespace portile {
namespace {

// The dimension that a packed type packs along: the last one, or the one before it.
int packed_dimension(const field_info& f, int rank, const environment& env) {
  return f.packs_rows && f.packs_rows->evaluate(env.lookup()).value_or(0) != 0 ? rank - 2 : rank - 1;
}

bool packs(dtype t) { return t == dtype::e2m1x2 || t == dtype::e5m6x8 || t == dtype::ue8m0x4; }

// False when the element count or the bytes spanned overflow: everything after this check may multiply
// extents freely. Extents and strides are not negative.
bool addressable(const tensor& t) {
  std::int64_t count = 1, last = 0, step, bytes;
  bool empty = false, fits = true;
  for (int i = 0; i < t.rank; ++i) {
    if (t.extent(i) == 0) {
      empty = true;
      continue;
    }
    fits = fits && !__builtin_mul_overflow(count, t.extent(i), &count) &&
           !__builtin_mul_overflow(t.extent(i) - 1, t.stride(i), &step) &&
           !__builtin_add_overflow(last, step, &last);
  }
  return fits && (empty || (last < std::numeric_limits<std::int64_t>::max() &&
                            !__builtin_mul_overflow(last + 1, size_of(t.dtype), &bytes)));
}

// Strides of an output must send different indices to different addresses. Sorted by stride, each must be at
// least the extent covered by the smaller ones: sufficient, and exact for everything a view of a dense array
// can be.
bool overlaps_itself(const tensor& t) {
  if (t.numel() <= 1) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride, extent
  for (int i = 0; i < t.rank; ++i)
    if (t.extent(i) > 1) steps.emplace_back(t.stride(i), t.extent(i));
  std::sort(steps.begin(), steps.end());
  std::int64_t covered = 1;
  for (const auto& [stride, extent] : steps) {
    if (stride < covered) return true;
    covered += stride * (extent - 1);
  }
  return false;
}

const shape_spec::alternative* alternative_for(const field_info& f, int rank) {
  for (const auto& a : f.shape.alternatives) {
    const int n = static_cast<int>(a.extents.size());
    if (a.open ? rank >= n : rank == n) return &a;
  }
  return nullptr;
}

template <class F>
void for_each_tensor(const op_info& op, const void* problem, F f) {
  for (const field_info& field : op.fields) {
    if (field.kind == field_kind::tensor) {
      f(field, field.tensor_in(problem), field.name);
    } else if (field.kind == field_kind::tensor_list) {
      const tensor_list& list = field.list_in(problem);
      for (std::int64_t i = 0; list.data && i < std::min(list.size, tensor_list::max_size); ++i)
        f(field, list[i], field.name + "[" + std::to_string(i) + "]");
    }
  }
}

}  // namespace

std::optional<std::int64_t> environment::find(std::string_view name) const {
  if (const auto it = dims_.find(name); it != dims_.end()) return it->second;
  if (!op_ || !problem_) return {};
  if (const auto dot = name.find('.'); dot != std::string_view::npos) {
    const field_info* f = op_->find(name.substr(0, dot));
    if (!f || f->kind != field_kind::tensor) return {};
    const tensor& t = f->tensor_in(problem_);
    return (t.defined() ? t.dtype : f->types.first()) == dtype_from_string(name.substr(dot + 1));
  }
  if (const field_info* f = op_->find(name); f && f->kind == field_kind::attribute)
    return f->attribute_number(problem_);
  return {};
}

void bind_dimensions(const op_info& op, const void* problem, environment& env) {
  for_each_tensor(op, problem, [&](const field_info& f, const tensor& t, const std::string&) {
    if (!t.defined() || t.rank > max_rank) return;
    const auto* a = alternative_for(f, t.rank);
    if (!a) return;
    const int first = t.rank - static_cast<int>(a->extents.size());
    for (int i = first; i < t.rank; ++i) {
      const auto linear = a->extents[static_cast<std::size_t>(i - first)].linear();
      if (!linear || env.find(linear->first) || op.find(linear->first)) continue;
      const bool packed = packs(t.dtype) && i == packed_dimension(f, t.rank, env);
      if (packed && t.dtype == dtype::ue8m0x4) continue;  // its padding bytes hide the exact number
      env.bind(linear->first, (packed ? value_extent(t.dtype, t.extent(i)) : t.extent(i)) - linear->second);
    }
  });
}

checker::checker(const op_info& op, const void* problem) : op_(op), problem_(problem), env_(op, problem) {
  declared_rules();
}

void checker::fail(std::string_view argument, const std::string& value, std::string_view rule) {
  result_ = status(status_code::invalid_argument,
                   op_.name + ": " + std::string(argument) + " = " + value + ": " + std::string(rule));
}

void checker::declared_rules() {
  for (const field_info& f : op_.fields) {
    if (f.kind == field_kind::tensor) {
      const tensor& t = f.tensor_in(problem_);
      if (t.defined())
        check_tensor(f, t, f.name);
      else if (need(f.is_optional, f.name, "absent", "is required"))
        // Kernels tell an absent tensor by its pointer.
        need(t.data == nullptr, f.name + ".dtype", t.dtype, "must be given with the memory of a tensor");
    } else if (f.kind == field_kind::tensor_list) {
      const tensor_list& list = f.list_in(problem_);
      if (!need(list.size >= 0 && list.size <= tensor_list::max_size, f.name + ".size", list.size,
                "must be 0 to 64"))
        return;
      if (!need(list.size == 0 || list.data, f.name + ".data", "null", "must point to its tensors")) return;
      for (std::int64_t i = 0; i < list.size && ok(); ++i) {
        const std::string name = f.name + "[" + std::to_string(i) + "]";
        if (need(list[i].defined(), name, "absent", "is required")) check_tensor(f, list[i], name);
      }
    } else if (!f.choices.empty()) {
      const std::string v = f.attribute_text(problem_);
      std::string rule = "must be one of";
      for (const std::string& c : f.choices) rule += " '" + c + "'";
      need(std::find(f.choices.begin(), f.choices.end(), v) != f.choices.end(), f.name, "'" + v + "'", rule);
    } else if (f.kind == field_kind::attribute && f.type == attribute_type::real && f.name.ends_with("eps")) {
      // An epsilon keeps a sum of squares or of exponentials away from zero; a negative one makes such a
      // divisor.
      double eps;
      std::memcpy(&eps, static_cast<const char*>(problem_) + f.offset, sizeof eps);
      need(std::isfinite(eps) && eps >= 0, f.name, eps, "must be a number of at least 0");
    }
    if (!ok()) return;
  }
  bind_dimensions(op_, problem_, env_);
  for_each_tensor(op_, problem_, [&](const field_info& f, const tensor& t, const std::string& name) {
    if (t.defined() && ok()) check_shape(f, t, name);
  });
}

void checker::check_tensor(const field_info& f, const tensor& t, const std::string& name) {
  if (!need(f.types.contains(t.dtype), name + ".dtype", t.dtype, "must be " + f.types.text())) return;
  if (t.rank > max_rank || !alternative_for(f, t.rank)) {
    need(false, name + ".rank", t.rank, "its shape must be [" + f.shape.text + "]");
    return;
  }
  for (int i = 0; i < t.rank; ++i) {
    const std::string d = "[" + std::to_string(i) + "]";
    if (!need(t.extent(i) >= 0, name + ".extents" + d, t.extent(i), "must not be negative")) return;
    if (!need(t.stride(i) >= 0, name + ".strides" + d, t.stride(i), "must not be negative")) return;
  }
  if (!need(addressable(t), name, t.text(),
            "is too large: element counts and byte offsets must fit in 63 bits"))
    return;
  if (f.layout == layout_rule::contiguous && !need(t.contiguous(), name, t, "must be contiguous")) return;
  if (f.layout == layout_rule::unit_last && t.rank > 0) {
    const int last = t.rank - 1;
    if (!need(t.extent(last) <= 1 || t.stride(last) == 1 || t.numel() == 0,
              name + ".strides[" + std::to_string(last) + "]", t.stride(last), "the last stride must be 1"))
      return;
  }
  if (f.role != field_role::in && !need(!overlaps_itself(t), name, t, "an output must not overlap itself"))
    return;
  if (t.numel() > 0 && !need(t.data != nullptr, name + ".data", "null", "must point to memory")) return;
  need(reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(size_of(t.dtype)) == 0,
       name + ".data", "address " + std::to_string(reinterpret_cast<std::uintptr_t>(t.data)),
       "misaligned: must be a multiple of the element size, " + std::to_string(size_of(t.dtype)) + " bytes");
}

void checker::check_shape(const field_info& f, const tensor& t, const std::string& name) {
  const auto* a = alternative_for(f, t.rank);
  const int first = t.rank - static_cast<int>(a->extents.size());
  for (int i = first; i < t.rank; ++i) {
    const formula& e = a->extents[static_cast<std::size_t>(i - first)];
    const auto values = e.evaluate(env_.lookup());
    if (!values) continue;
    std::int64_t expected = *values;
    std::string rule = "must be " + e.text();
    if (e.text() != std::to_string(*values)) rule += " = " + std::to_string(*values);
    if (packs(t.dtype) && i == packed_dimension(f, t.rank, env_)) {
      const std::int64_t unit = t.dtype == dtype::e2m1x2 ? 2 : t.dtype == dtype::e5m6x8 ? 8 : 1;
      if (!need(expected % unit == 0, e.text(), expected,
                name + " packs " + std::to_string(unit) + " values: must be a multiple of " +
                    std::to_string(unit)))
        return;
      expected = stored_extent(t.dtype, expected);
      rule += " values, stored as " + std::to_string(expected) + " elements of " +
              std::string(to_string(t.dtype));
    }
    if (!need(t.extent(i) == expected, name + ".extents[" + std::to_string(i) + "]", t.extent(i), rule))
      return;
  }
}

status check(const op_info& op, const void* problem) {
  checker c(op, problem);
  if (c.ok() && op.check) op.check(problem, c);
  return c.result();
}

std::optional<std::vector<std::int64_t>> declared_extents(const field_info& f, dtype type,
                                                          const environment& env, std::string& missing) {
  std::optional<std::vector<std::int64_t>> best;
  for (const auto& a : f.shape.alternatives) {
    std::vector<std::int64_t> e;
    bool known = true;
    for (const formula& x : a.extents) {
      const auto v = x.evaluate(env.lookup());
      if (!v) {
        missing = x.text();
        known = false;
        break;
      }
      e.push_back(*v);
    }
    if (known && (!best || e.size() > best->size())) best = std::move(e);
  }
  if (!best || !packs(type)) return best;
  const int d = packed_dimension(f, static_cast<int>(best->size()), env);
  if (d >= 0)
    (*best)[static_cast<std::size_t>(d)] = stored_extent(type, (*best)[static_cast<std::size_t>(d)]);
  return best;
}

inference::inference(const op_info& op, const void* problem, environment env)
    : op_(op), env_(std::move(env)) {
  bind_dimensions(op, problem, env_);
}

output_spec& inference::out(std::string_view field, dtype type) {
  const field_info* f = op_.find(field);
  if (!f || f->shape.alternatives.empty())
    throw error(status_code::internal,
                op_.name + ": infer names '" + std::string(field) + "', which is no output");
  std::string missing;
  auto known = declared_extents(*f, type, env_, missing);
  if (!known)
    throw error(status_code::invalid_argument,
                op_.name + ": " + f->name + ": its extent " + missing + " is not known");
  std::vector<std::int64_t> extents = std::move(*known);
  const extents_t s = contiguous_strides(extents);
  std::vector<std::int64_t> strides(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(extents.size()));
  return out(field, type, std::move(extents), std::move(strides));
}

output_spec& inference::out(std::string_view field, dtype type, std::vector<std::int64_t> extents,
                            std::vector<std::int64_t> strides) {
  outputs_.push_back({std::string(field), type, std::move(extents), std::move(strides), false});
  return outputs_.back();
}

std::vector<output_spec> infer(const op_info& op, const void* problem) {
  return infer(op, problem, environment(op, problem));
}

std::vector<output_spec> infer(const op_info& op, const void* problem, environment env) {
  inference i(op, problem, std::move(env));
  op.infer(problem, i);
  return i.outputs();
}

}  // namespace portile

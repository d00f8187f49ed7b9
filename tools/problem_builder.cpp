#include "problem_builder.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command.hpp"

namespace portile::tool {
namespace {

std::int64_t whole_number(const std::string& key, std::string_view text) {
  std::int64_t n = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), n);
  if (r.ec != std::errc{} || r.ptr != text.data() + text.size())
    throw usage_error(fmt::format("{} = '{}': must be a whole number", key, text));
  return n;
}

// Sizes beyond every memory would overflow the arithmetic of checks and shapes.
void need_bounded(const std::string& name, const std::vector<std::int64_t>& extents,
                  const std::vector<std::int64_t>& strides) {
  constexpr double limit = 1e17;
  double count = 1, span = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    count *= static_cast<double>(extents[i]);
    span += static_cast<double>(extents[i]) * static_cast<double>(strides[i]);
  }
  if (std::max(count, -count) > limit || std::max(span, -span) > limit)
    throw usage_error(
        fmt::format("{}: [{}] elements are more than any memory holds", name, fmt::join(extents, ", ")));
}

}  // namespace

described_problem::described_problem(const op_info& op, const std::vector<std::string>& settings,
                                     const std::vector<std::string>& with, device where)
    : op_(op), problem_(op), env_(op, problem_.get()), where_(where), with_(with) {
  for (const std::string& name : with) {
    const field_info* f = op.find(name);
    if (!f || f->kind == field_kind::attribute)
      throw usage_error(fmt::format("--with {}: {} has no tensor of this name", name, op.name));
  }
  for (const std::string& s : settings) read(s);
  for (const auto& [name, o] : overrides_)
    if (const field_info* f = op.find(name); !given(*f))
      throw usage_error(fmt::format("{} is optional and not given: add --with {}", name, name));
  add_inputs();
  add_outputs();
}

void described_problem::read(const std::string& setting) {
  const auto eq = setting.find('=');
  if (eq == std::string::npos || eq == 0) throw usage_error(fmt::format("'{}': must be key=value", setting));
  const std::string key = setting.substr(0, eq), value = setting.substr(eq + 1);
  if (const auto dot = key.find('.'); dot != std::string::npos)
    return read_field(key.substr(0, dot), std::string_view(key).substr(dot + 1), value);
  const field_info* f = op_.find(key);
  if (f && f->kind == field_kind::attribute) return problem_.set(key, value);
  if (op_.is_dimension(key)) return env_.bind(key, whole_number(key, value));
  // m=4096 is as clear as M=4096, where one dimension has that letter.
  std::vector<std::string> alike;
  for (const std::string& d : op_.dimensions)
    if (std::equal(d.begin(), d.end(), key.begin(), key.end(),
                   [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); }))
      alike.push_back(d);
  if (alike.size() == 1) return env_.bind(alike[0], whole_number(key, value));
  std::string known;
  for (const std::string& d : op_.dimensions) known += " " + d;
  for (const field_info& a : op_.fields)
    if (a.kind == field_kind::attribute) known += " " + a.name;
  throw usage_error(
      fmt::format("{}: {} has no dimension or attribute of this name; known:{}", key, op_.name, known));
}

void described_problem::read_field(const std::string& field, std::string_view property,
                                   const std::string& value) {
  const field_info* f = op_.find(field);
  if (!f || f->kind == field_kind::attribute)
    throw usage_error(fmt::format("{}.{}: {} has no tensor '{}'", field, property, op_.name, field));
  overrides& o = overrides_[field];
  const std::string key = fmt::format("{}.{}", field, property);
  if (property == "dtype") {
    o.type = dtype_from_string(value);
    if (o.type == dtype::none) throw usage_error(fmt::format("{} = '{}': no such element type", key, value));
  } else if (property == "strides") {
    o.strides.clear();
    for (const std::string& s : split(value, ',')) o.strides.push_back(whole_number(key, s));
  } else if (property == "offset") {
    o.offset = whole_number(key, value);
  } else {
    throw usage_error(fmt::format("{}: must be {}.dtype, {}.strides or {}.offset", key, field, field, field));
  }
}

const described_problem::overrides& described_problem::of(const field_info& f) const {
  static const overrides none;
  const auto it = overrides_.find(f.name);
  return it == overrides_.end() ? none : it->second;
}

bool described_problem::given(const field_info& f) const {
  return f.kind != field_kind::attribute &&
         (!f.is_optional || std::find(with_.begin(), with_.end(), f.name) != with_.end());
}

std::vector<std::int64_t> described_problem::declared(const field_info& f, dtype type) const {
  std::string missing;
  if (auto e = declared_extents(f, type, env_, missing)) return *std::move(e);
  std::string unknown;
  for (const std::string& n : formula(missing).names())
    if (!env_.find(n)) unknown += fmt::format("{}{}=N", unknown.empty() ? "" : " ", n);
  throw usage_error(fmt::format("{} has the shape [{}]: {} has no value{}", f.name, f.shape.text, missing,
                                unknown.empty() ? "" : "; give " + unknown));
}

void described_problem::add_inputs() {
  const auto type_of = [&](const field_info& f) {
    return of(f).type != dtype::none ? of(f).type : f.types.first();
  };
  // Shapes may depend on element types, and infer may look at an output's: they are there first.
  for (const field_info& f : op_.fields)
    if (f.kind == field_kind::tensor && given(f) && (f.role != field_role::out || of(f).type != dtype::none))
      f.tensor_in(problem_.get()).dtype = type_of(f);
  for (const field_info& f : op_.fields)
    if (given(f) && f.role != field_role::out) set(f, type_of(f), declared(f, type_of(f)), {});
}

void described_problem::add_outputs() {
  std::vector<output_spec> inferred;
  try {
    inferred = infer(op_, problem_.get(), env_);
  } catch (const error&) {
    // An attribute makes no sense: check() will say which.
  }
  for (const field_info& f : op_.fields) {
    if (!given(f) || f.role != field_role::out) continue;
    const auto it = std::find_if(inferred.begin(), inferred.end(),
                                 [&](const output_spec& o) { return o.field == f.name; });
    const dtype chosen = of(f).type;
    if (it != inferred.end() && (chosen == dtype::none || chosen == it->dtype)) {
      set(f, it->dtype, it->extents, it->strides);
    } else {
      const dtype type = chosen != dtype::none ? chosen : f.types.first();
      set(f, type, declared(f, type), {});
    }
  }
}

void described_problem::set(const field_info& f, dtype type, const std::vector<std::int64_t>& extents,
                            std::vector<std::int64_t> strides) {
  if (extents.size() > static_cast<std::size_t>(max_rank))
    throw usage_error(fmt::format("{}: rank {} is above {}", f.name, extents.size(), max_rank));
  if (const auto& chosen = of(f).strides; !chosen.empty()) {
    if (chosen.size() != extents.size())
      throw usage_error(
          fmt::format("{}.strides: {} numbers for [{}]", f.name, chosen.size(), fmt::join(extents, ", ")));
    strides = chosen;
  }
  need_bounded(f.name, extents, std::vector<std::int64_t>(extents.size(), 1));
  if (strides.empty()) {
    const extents_t s = contiguous_strides(extents);
    strides.assign(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(extents.size()));
  }
  need_bounded(f.name, extents, strides);
  // Addresses far apart and 256-byte aligned, as an allocation's are.
  const std::uintptr_t address = next_address_ + static_cast<std::uintptr_t>(of(f).offset * size_of(type));
  next_address_ += std::uintptr_t{1} << 40;
  const tensor t =
      make_tensor(reinterpret_cast<void*>(address), type, extents, strides, f.on_host ? device{} : where_);
  if (f.kind == field_kind::tensor) {
    f.tensor_in(problem_.get()) = t;
  } else {
    list_elements_.push_back(std::make_unique<tensor>(t));
    f.list_in(problem_.get()) = {list_elements_.back().get(), 1};
  }
}

}  // namespace portile::tool

#include "fuzz/random_problem.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#if defined(__SANITIZE_ADDRESS__)
#define PORTILE_FUZZ_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PORTILE_FUZZ_ASAN 1
#endif
#endif
#ifdef PORTILE_FUZZ_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace portile::fuzz {
namespace {

constexpr std::uint8_t guard_byte = 0x5A, poison_byte = 0xA5;
constexpr std::int64_t largest_tensor = 1 << 20;  // bytes
constexpr std::int64_t largest_work = 1 << 18;    // product of all dimensions

// Elements from the first to the last addressed one; -1 when too many, or when a stride or extent is no
// honest one.
std::int64_t safe_span(const tensor& t) {
  if (t.rank < 0 || t.rank > max_rank) return -1;
  __int128 last = 0;
  bool empty = false;
  for (int i = 0; i < t.rank; ++i) {
    if (t.extent(i) < 0 || t.stride(i) < 0) return -1;
    empty = empty || t.extent(i) == 0;
    if (t.extent(i) > 0) last += static_cast<__int128>(t.extent(i) - 1) * t.stride(i);
    if (last > largest_tensor) return empty ? 0 : -1;
  }
  return empty ? 0 : static_cast<std::int64_t>(last) + 1;
}

template <class F>
void for_each_tensor(const op_info& op, void* problem,
                     std::map<std::string, std::vector<tensor>, std::less<>>& lists, F f) {
  for (const field_info& field : op.fields) {
    if (field.kind == field_kind::tensor) f(field, field.tensor_in(problem));
    if (field.kind == field_kind::tensor_list)
      for (tensor& t : lists[field.name]) f(field, t);
  }
}

}  // namespace

buffer::buffer(const tensor& t, std::int64_t span, int offset, field_role r)
    : view(t), role(r), size_(static_cast<std::size_t>(span * size_of(t.dtype))) {
  bytes_.assign(size_ + 2 * band + 512, guard_byte);
  const auto start = reinterpret_cast<std::uintptr_t>(bytes_.data()) + band;
  first_ = band + (256 - start % 256) % 256 + static_cast<std::size_t>(offset);
  std::memset(data(), poison_byte, size_);
  view.data = data();
  guard(true);
}

buffer::~buffer() { guard(false); }

void buffer::guard([[maybe_unused]] bool on) const {
#ifdef PORTILE_FUZZ_ASAN
  const auto mark = [&](std::size_t from, std::size_t to) {
    if (on)
      ASAN_POISON_MEMORY_REGION(bytes_.data() + from, to - from);
    else
      ASAN_UNPOISON_MEMORY_REGION(bytes_.data() + from, to - from);
  };
  mark(0, first_);
  mark(first_ + size_, bytes_.size());
#endif
}

bool buffer::guards_intact() const {
  guard(false);
  bool intact = true;
  for (std::size_t i = 0; i < bytes_.size(); ++i)
    if ((i < first_ || i >= first_ + size_) && bytes_[i] != guard_byte) intact = false;
  guard(true);
  return intact;
}

bool buffer::gaps_unchanged() {
  const auto element = static_cast<std::size_t>(size_of(view.dtype));
  std::vector<bool> covered(element == 0 ? 0 : size_ / element);
  const std::int64_t n = view.numel();
  for (std::int64_t k = 0; k < n; ++k) {
    std::int64_t rest = k, at = 0;
    for (int i = view.rank - 1; i >= 0; --i) {
      at += rest % view.extent(i) * view.stride(i);
      rest /= view.extent(i);
    }
    covered[static_cast<std::size_t>(at)] = true;
  }
  for (std::size_t i = 0; i < covered.size(); ++i)
    if (!covered[i] && std::memcmp(data() + i * element, before_.data() + i * element, element) != 0)
      return false;
  return true;
}

random_problem::random_problem(const op_info& op, source& from) : problem(op), from_(from) {
  for (const std::string& name : op.dimensions) dimensions_[name] = choose_extent({});
  for (const field_info& f : op.fields) {
    if (f.kind != field_kind::attribute)
      choose(f);
    else if (from_.chance(60))
      choose_attribute(f, {}, "");
  }
  bound_work();
  if (from_.chance(95))
    repair();
  else
    build();
  for (const auto& [name, extent] : dimensions_) largest_ = std::max(largest_, extent);
  if (from_.chance(20)) damage();
  give_memory();
}

// `hints`: numbers of the rule that refused the last choice.
std::int64_t random_problem::choose_extent(const std::vector<std::int64_t>& hints) {
  if (!hints.empty() && from_.chance(60))
    return std::clamp<std::int64_t>(
               hints[static_cast<std::size_t>(from_.below(static_cast<int>(hints.size())))], 0, 4096) *
           from_.pick({1, 1, 1, 2, 3, 4});
  if (from_.chance(40)) return from_.pick<std::int64_t>({64, 128, 192, 256, 384, 512});
  if (from_.chance(5)) return 0;
  return from_.pick<std::int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 31, 32, 33, 48, 64, 65, 96, 100, 129});
}

// A reference is no fast one.
void random_problem::bound_work() {
  if (dimensions_.empty()) return;
  for (;;) {
    std::int64_t work = 1;
    for (const auto& [name, extent] : dimensions_) work *= std::max<std::int64_t>(extent, 1);
    if (work <= largest_work) return;
    std::next(dimensions_.begin(), static_cast<std::ptrdiff_t>(from_.bits() % dimensions_.size()))->second =
        static_cast<std::int64_t>(1 + from_.bits() % 8) * (from_.bits() % 4 == 0 ? 32 : 1);
  }
}

void random_problem::choose_attribute(const field_info& f, const std::vector<std::int64_t>& hints,
                                      std::string_view rule) {
  const auto any_dimension = [&] {
    return std::next(dimensions_.begin(),
                     from_.below(static_cast<int>(std::min<std::size_t>(dimensions_.size(), 256))))
        ->second;
  };
  std::string value;
  switch (f.type) {
    case attribute_type::boolean:
      value = from_.chance(50) ? "true" : "false";
      break;
    case attribute_type::optional_integer:
    case attribute_type::integer:
      if (f.type == attribute_type::optional_integer && from_.chance(20))
        value = "none";
      else if (!hints.empty() && from_.chance(60))
        value = std::to_string(hints[static_cast<std::size_t>(from_.below(static_cast<int>(hints.size())))]);
      else if (from_.chance(15) && !dimensions_.empty())
        value = std::to_string(any_dimension());
      else if (from_.chance(4))
        value = std::to_string(from_.pick<std::int64_t>({-1, 1000, 65536, 1LL << 31, 1LL << 62,
                                                         std::numeric_limits<std::int64_t>::max(),
                                                         std::numeric_limits<std::int64_t>::min()}));
      else
        value = std::to_string(from_.pick<std::int64_t>({0, 1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 96, 128}));
      break;
    case attribute_type::optional_real:
    case attribute_type::real:
      if (f.type == attribute_type::optional_real && from_.chance(20))
        value = "none";
      else
        value = from_.pick({"0", "1", "-1", "0.5", "10", "1e-6", "1e-38", "1e38", "inf", "nan"});
      break;
    case attribute_type::text: {
      // A rule quotes the texts it takes.
      std::vector<std::string> quoted = f.choices;
      for (std::size_t at = rule.find('\''); at != std::string_view::npos; at = rule.find('\'', at + 1)) {
        const std::size_t end = rule.find('\'', at + 1);
        if (end == std::string_view::npos) break;
        if (end - at - 1 <= word::capacity) quoted.emplace_back(rule.substr(at + 1, end - at - 1));
        at = end;
      }
      value = quoted.empty() || from_.chance(5)
                  ? from_.pick({"", "e4m3", "e2m1", "e5m6", "none", "sum"})
                  : quoted[static_cast<std::size_t>(from_.below(static_cast<int>(quoted.size())))];
      break;
    }
  }
  f.set_attribute(problem.get(), value);
}

void random_problem::choose(const field_info& f) {
  choice& c = choices_[f.name];
  c.present = !f.is_optional || from_.chance(60);
  c.inferred = from_.chance(85);
  c.type = *std::next(f.types.begin(), from_.below(f.types.size()));
  c.alternative = from_.below(static_cast<int>(std::max<std::size_t>(f.shape.alternatives.size(), 1)));
  c.leading = from_.below(3);
  c.strides = from_.chance(60) ? layout::contiguous
                               : from_.pick({layout::padded, layout::padded, layout::padded,
                                             layout::column_major, layout::repeated});
  c.padding = from_.below(18);
  c.count = from_.below(4);
}

// With the declared shape; where that is not known, with some shape.
tensor random_problem::shaped(const field_info& f, const choice& c, const environment& env) {
  std::string missing;
  std::vector<std::int64_t> extents;
  field_info one = f;  // declared_extents would take the longest shape
  const auto& all = f.shape.alternatives;
  const bool open = !all.empty() && all[static_cast<std::size_t>(c.alternative)].open;
  if (all.size() > 1) one.shape.alternatives = {all[static_cast<std::size_t>(c.alternative)]};
  if (auto known = declared_extents(one, c.type, env, missing))
    extents = std::move(*known);
  else
    extents.assign(all.empty() ? 1 : all[0].extents.size(), c.padding);
  for (int n = open ? c.leading : 0; n > 0 && extents.size() < max_rank; --n)
    extents.insert(extents.begin(), 1 + n);
  if (extents.size() > max_rank) extents.resize(max_rank);
  for (std::int64_t& e : extents) e = std::max<std::int64_t>(e, 0);
  tensor t = make_tensor(nullptr, c.type, extents);
  set_strides(t, f, c);
  return t;
}

void random_problem::set_strides(tensor& t, const field_info& f, const choice& c) {
  if (f.layout == layout_rule::contiguous || t.rank == 0 || c.strides == layout::contiguous) return;
  const auto at = [&](int i) -> std::int64_t& { return t.strides[static_cast<std::size_t>(i)]; };
  const auto step_over = [&](int i) { return std::clamp<std::int64_t>(t.extent(i), 1, 1 << 20); };
  std::int64_t step = 1;
  if (f.layout == layout_rule::any && c.strides == layout::column_major) {
    for (int i = 0; i < t.rank; ++i)
      at(i) = step,
      step = std::min<std::int64_t>(step * (step_over(i) + (i == 0 ? c.padding % 4 : 0)), 1 << 30);
  } else if (t.rank > 1) {  // rows of a wider matrix
    step = step_over(t.rank - 1) + c.padding;
    for (int i = t.rank - 2; i >= 0; --i)
      at(i) = step, step = std::min<std::int64_t>(step * step_over(i), 1 << 30);
    if (c.strides == layout::repeated) at(0) = 0;  // fine for inputs, refused for outputs
  } else if (f.layout == layout_rule::any) {
    at(0) = c.padding % 4;
  }
}

// The tensors of the problem from the choices, with a pointer that only check() can live with.
void random_problem::build() {
  void* const somewhere = reinterpret_cast<void*>(4096);
  environment env(op(), problem.get());
  for (const auto& [name, extent] : dimensions_) env.bind(name, extent);
  for (const field_info& f : op().fields) {
    if (f.kind == field_kind::attribute) continue;
    const choice& c = choices_[f.name];
    if (f.kind == field_kind::tensor) {
      tensor& t = f.tensor_in(problem.get());
      t = c.present ? shaped(f, c, env) : tensor{};
      t.data = c.present ? somewhere : nullptr;
    } else {
      std::vector<tensor>& list = lists_[f.name];
      list.assign(static_cast<std::size_t>(c.count), shaped(f, c, env));
      for (tensor& t : list) t.data = somewhere;
      f.list_in(problem.get()) = {list.data(), static_cast<std::int64_t>(list.size())};
    }
  }
  try {
    for (const output_spec& spec : infer(op(), problem.get(), env)) {
      const field_info* f = op().find(spec.field);
      if (!f || f->kind != field_kind::tensor || f->role != field_role::out) continue;
      const choice& c = choices_[f->name];
      if (!c.present || !c.inferred || spec.extents.size() > max_rank) continue;
      tensor& t = f->tensor_in(problem.get());
      t = make_tensor(somewhere, spec.dtype, spec.extents, spec.strides);
      if (f->layout == layout_rule::unit_last) set_strides(t, *f, c);
    }
  } catch (const error& e) {
    if (e.code() != status_code::invalid_argument) throw;
  }
}

void random_problem::repair() {
  for (int tries = 0; tries < 80; ++tries) {
    build();
    const status s = check(op(), problem.get());
    if (s.ok()) return;
    choose_again(s.text());
  }
}

// The text reads "<op>: <argument> = <value>: <rule>": chooses the argument anew, with what the rule mentions
// in mind.
void random_problem::choose_again(const std::string& refusal) {
  const std::string_view rest =
      std::string_view(refusal).substr(std::min(refusal.size(), op().name.size() + 2));
  const std::size_t equals = std::min(rest.find(" = "), rest.size());
  const std::string_view argument = rest.substr(0, equals), rule = rest.substr(equals);
  std::vector<std::int64_t> hints;
  for (std::size_t i = 0; i < rule.size();) {
    std::int64_t n = 0;
    std::size_t digits = 0;
    for (; i < rule.size() && rule[i] >= '0' && rule[i] <= '9'; ++i, ++digits)
      n = digits < 9 ? n * 10 + (rule[i] - '0') : n;
    if (digits > 0)
      hints.push_back(n);
    else
      ++i;
  }
  // Fields and dimensions that the argument or, one time in three, the rule mentions.
  const std::string_view where = from_.chance(33) ? rest : argument;
  std::vector<const field_info*> fields;
  std::vector<std::string> names;
  const auto mentioned = [&](std::string_view name) {
    for (std::size_t at = where.find(name); at != std::string_view::npos; at = where.find(name, at + 1)) {
      const auto part_of_a_word = [&](std::size_t i) {
        return i < where.size() && (std::isalnum(static_cast<unsigned char>(where[i])) || where[i] == '_');
      };
      if ((at == 0 || !part_of_a_word(at - 1)) && !part_of_a_word(at + name.size())) return true;
    }
    return false;
  };
  for (const field_info& f : op().fields)
    if (mentioned(f.name)) fields.push_back(&f);
  for (const std::string& name : op().dimensions)
    if (mentioned(name)) names.push_back(name);

  const int count = static_cast<int>(fields.size() + names.size());
  const int which = count ? from_.below(std::min(count, 256)) : 0;
  if (count == 0 || from_.chance(5)) {
    if (!dimensions_.empty())
      std::next(dimensions_.begin(), static_cast<std::ptrdiff_t>(from_.bits() % dimensions_.size()))->second =
          choose_extent(hints);
  } else if (which >= static_cast<int>(fields.size())) {
    dimensions_[names[static_cast<std::size_t>(which) - fields.size()]] = choose_extent(hints);
  } else if (const field_info& f = *fields[static_cast<std::size_t>(which)];
             f.kind == field_kind::attribute) {
    choose_attribute(f, hints, rule);
  } else {
    choose(f);
    choice& c = choices_[f.name];
    // Types that the rule names are better than others.
    if (from_.chance(70))
      for (const dtype t : f.types)
        if (rule.find(to_string(t)) != std::string_view::npos) c.type = t;
    if (from_.chance(50)) c.strides = layout::contiguous;
  }
  bound_work();
}

// Breaks one tensor in one way: most of the rules of check() are met only here.
void random_problem::damage() {
  std::vector<std::pair<const field_info*, tensor*>> all;
  for_each_tensor(op(), problem.get(), lists_,
                  [&](const field_info& f, tensor& t) { all.emplace_back(&f, &t); });
  if (all.empty()) return;
  const auto [field, t] = all[static_cast<std::size_t>(from_.below(static_cast<int>(all.size())))];
  const auto dimension = static_cast<std::size_t>(from_.below(std::clamp(t->rank, 1, max_rank)));
  const auto huge = [&] {
    return from_.pick<std::int64_t>(
        {-1, 1LL << 31, 1LL << 40, 1LL << 62, std::numeric_limits<std::int64_t>::max()});
  };
  switch (from_.below(9)) {
    case 0:
      t->extents[dimension] += from_.pick({-1, 1, 2, 64});
      break;
    case 1:
      t->extents[dimension] = huge();
      break;
    case 2:
      t->strides[dimension] += from_.pick({-1, 1, 2, -1000});
      break;
    case 3:
      t->strides[dimension] = huge();
      break;
    case 4:
      t->rank = from_.pick({-1, 0, 1, 2, 3, 4, 5, 6, 100});
      break;
    case 5:
      t->dtype = static_cast<dtype>(from_.below(num_dtypes));
      break;
    case 6:
      t->data = reinterpret_cast<void*>(4097);
      break;  // an odd address
    case 7:
      *t = t->defined() ? tensor{} : shaped(*field, choices_[field->name], environment(op(), problem.get()));
      break;
    case 8:
      t->device = device(device_kind::cuda, 0);
      break;
  }
}

void random_problem::give_memory() {
  for_each_tensor(op(), problem.get(), lists_, [&](const field_info& f, tensor& t) {
    if (!t.defined()) return;
    const bool odd = t.data == reinterpret_cast<void*>(4097);
    const std::int64_t span = safe_span(t);
    if (span < 0 || span * size_of(t.dtype) > largest_tensor) {
      runnable = false;
      t.data = reinterpret_cast<void*>(4096);  // for check(), which looks at no data
      return;
    }
    if (span == 0 && from_.chance(50)) {
      t.data = nullptr;  // legal for an empty tensor
      return;
    }
    const int offset = (from_.chance(40) ? from_.below(16) : 0) * static_cast<int>(size_of(t.dtype));
    buffers.emplace_back(t, span, offset + (odd ? 1 : 0), f.role);
    t.data = buffers.back().data();
    if (f.role != field_role::out) fill(buffers.back());
    if (f.name == "token_topk_to_pos" && op().name.find("moe.expand") == 0)
      keep_first_of_each(buffers.back());
    buffers.back().remember();
  });
}

/// Rows that are written must be named once: a repeated position becomes none.
void random_problem::keep_first_of_each(buffer& b) {
  std::set<std::int32_t> seen;
  for (std::size_t at = 0; at + sizeof(std::int32_t) <= b.size(); at += sizeof(std::int32_t)) {
    std::int32_t position;
    std::memcpy(&position, b.data() + at, sizeof position);
    if (seen.insert(position).second) continue;
    position = -1;
    std::memcpy(b.data() + at, &position, sizeof position);
  }
}

void random_problem::fill(buffer& b) {
  const int mode = from_.below(4);
  extreme = extreme || mode == 1 || mode == 2;
  const auto element = static_cast<std::size_t>(size_of(b.view.dtype));
  const std::size_t n = element == 0 ? 0 : b.size() / element;
  const auto put = [&](std::size_t i, auto value) {
    std::memcpy(b.data() + i * element, &value, sizeof value);
  };
  std::int64_t rising = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t r = from_.bits();
    const float small =
        static_cast<float>(static_cast<std::int64_t>(r >> 40) - (1 << 23)) * 0x1p-22f;  // [-2, 2)
    const float special = std::bit_cast<float>(
        static_cast<std::uint32_t>(r % 3 == 0   ? 0x7f800000u | (r >> 32 & 0x80400000u)  // Inf or NaN
                                   : r % 3 == 1 ? r >> 32 & 0x80000001u                  // 0 or the smallest
                                                : 0x7f7fffffu));
    const float real = mode == 1   ? std::bit_cast<float>(static_cast<std::uint32_t>(r >> 32))
                       : mode == 2 ? special
                                   : small;
    // Ids: mostly in range, one below and one above it too; or rising, as positions and ends of segments are.
    rising = std::min(rising + static_cast<std::int64_t>(r >> 32) % 4, largest_);
    const std::int64_t id = mode == 0   ? static_cast<std::int64_t>(r >> 1) % (largest_ + 2) - 1
                            : mode == 1 ? static_cast<std::int64_t>(r)
                            : mode == 2 ? static_cast<std::int64_t>(r >> 63)
                                        : rising;
    switch (b.view.dtype) {
      case dtype::f32:
        put(i, real);
        break;
      case dtype::f64:
        put(i, static_cast<double>(real));
        break;
      case dtype::bf16:
        put(i, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(real) >> 16));
        break;
      case dtype::i8:
        put(i, static_cast<std::int8_t>(id));
        break;
      case dtype::i16:
        put(i, static_cast<std::int16_t>(id));
        break;
      case dtype::i32:
      case dtype::u32:
        put(i, static_cast<std::int32_t>(id));
        break;
      case dtype::i64:
        put(i, id);
        break;
      case dtype::boolean:
        put(i, static_cast<std::uint8_t>(r >> 63));
        break;  // other bytes are no bool
      default:
        std::memcpy(b.data() + i * element, &r, element);
        extreme = extreme || b.view.dtype == dtype::ue8m0x4;  // exponents up to 2^127
        break;                                                // codes: every bit pattern is one
    }
  }
}

bool random_problem::on_host() const {
  bool host = true;
  for (const field_info& f : op().fields) {
    if (f.kind == field_kind::tensor && f.tensor_in(problem.get()).defined())
      host = host && f.tensor_in(problem.get()).device == device{};
    if (f.kind == field_kind::tensor_list)
      for (const tensor& t : lists_.find(f.name)->second) host = host && t.device == device{};
  }
  return host;
}

void random_problem::move_to(device d, const std::function<void*(buffer&)>& address_there) {
  for_each_tensor(op(), problem.get(), lists_, [&](const field_info& f, tensor& t) {
    if (!t.defined() || f.on_host) return;
    t.device = d;
    for (buffer& b : buffers)
      if (t.data == b.data()) {
        t.data = address_there(b);
        break;
      }
  });
}

std::string random_problem::text() const {
  std::string s = op().name + "\n";
  const void* p = problem.get();
  for (const field_info& f : op().fields) {
    s += "  " + f.name + " = ";
    if (f.kind == field_kind::attribute)
      s += f.attribute_text(p);
    else if (f.kind == field_kind::tensor_list)
      s += "list of " + std::to_string(f.list_in(p).size);
    else if (const tensor& t = f.tensor_in(p); !t.defined())
      s += "absent";
    else if (t.rank < 0 || t.rank > max_rank)
      s += "rank " + std::to_string(t.rank);
    else
      s += t.text() + (t.data ? "" : ", null");
    s += "\n";
  }
  return s;
}

}  // namespace portile::fuzz

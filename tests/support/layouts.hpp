#pragma once
// Properties that every operation has, checked by walking its fields: results do not depend on strides or
// offsets, nothing is written between rows, a second run gives the same bits, tokens do not depend on each
// other, no tokens is legal.
#include <sys/mman.h>

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include <portile/core/dispatch.hpp>
#include <portile/core/numeric/bf16.hpp>

#include "support/catch.hpp"
#include "support/memory.hpp"

namespace portile::test {

/// f(flat index, offset in elements) for every element of a tensor.
template <class F>
void for_each_offset(const tensor& t, F f) {
  for (std::int64_t i = 0, n = t.numel(); i < n; ++i) {
    std::int64_t offset = 0, rest = i;
    for (int d = t.rank - 1; d >= 0; --d) {
      offset += rest % t.extent(d) * t.stride(d);
      rest /= t.extent(d);
    }
    f(i, offset);
  }
}

/// Element of an f32 or bf16 tensor by flat index.
inline double value(const tensor& t, std::int64_t flat) {
  std::int64_t offset = 0;
  for (int d = t.rank - 1; d >= 0; --d) {
    offset += flat % t.extent(d) * t.stride(d);
    flat /= t.extent(d);
  }
  if (t.dtype == dtype::f32) return static_cast<const float*>(t.data)[offset];
  return numeric::to_float(static_cast<const numeric::bf16*>(t.data)[offset]);
}
inline void set_value(const tensor& t, std::int64_t offset, float v) {
  if (t.dtype == dtype::f32) static_cast<float*>(t.data)[offset] = v;
  if (t.dtype == dtype::bf16) static_cast<numeric::bf16*>(t.data)[offset] = numeric::to_bf16(v);
}
inline std::vector<double> values(const tensor& t) {
  std::vector<double> r;
  for (std::int64_t i = 0; i < t.numel(); ++i) r.push_back(value(t, i));
  return r;
}

/// mean + deviation * N(0, 1) in an f32 or bf16 tensor of any strides.
inline tensor fill(const tensor& t, unsigned seed, float deviation = 1, float mean = 0) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for_each_offset(t, [&](std::int64_t, std::int64_t o) { set_value(t, o, mean + deviation * normal(rng)); });
  return t;
}

/// Copies the elements of a tensor to another one of the same shape.
inline void copy_elements(const tensor& from, const tensor& to) {
  std::vector<std::int64_t> source;
  for_each_offset(from, [&](std::int64_t, std::int64_t o) { source.push_back(o); });
  const auto size = static_cast<std::size_t>(size_of(from.dtype));
  for_each_offset(to, [&](std::int64_t i, std::int64_t o) {
    std::memcpy(static_cast<char*>(to.data) + static_cast<std::size_t>(o) * size,
                static_cast<const char*>(from.data) +
                    static_cast<std::size_t>(source[static_cast<std::size_t>(i)]) * size,
                size);
  });
}

/// A copy in `m` whose rows are `gap` elements apart in every dimension but the last, `offset` elements into
/// its buffer.
inline tensor copy(memory& m, const tensor& t, std::int64_t gap = 0, std::int64_t offset = 0) {
  if (!t.defined()) return t;
  tensor c = t;
  std::int64_t step = 1;
  for (int d = t.rank - 1; d >= 0; --d) {
    c.strides[static_cast<std::size_t>(d)] = step;
    step = step * std::max<std::int64_t>(t.extent(d), 1) + gap;
  }
  c.data = static_cast<char*>(m.make(t.dtype, {step + offset}).data) + offset * size_of(t.dtype);
  copy_elements(t, c);
  return c;
}

/// Address space without memory behind it until it is touched.
class reserved {
 public:
  explicit reserved(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0)) {}
  ~reserved() {
    if (data()) munmap(data_, bytes_);
  }
  reserved(const reserved&) = delete;
  void* data() const { return data_ == MAP_FAILED ? nullptr : data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

/// A copy whose rows (first dimension) lie more than 2^31 elements apart.
inline tensor far_copy(std::deque<reserved>& spaces, const tensor& t) {
  tensor c = t;
  std::int64_t step = 1;
  for (int d = t.rank - 1; d > 0; --d) {
    c.strides[static_cast<std::size_t>(d)] = step;
    step *= t.extent(d);
  }
  c.strides[0] = (std::int64_t{1} << 31) + 64 + step;
  c.data = spaces.emplace_back(static_cast<std::size_t>(c.span() * size_of(c.dtype))).data();
  if (c.data) copy_elements(t, c);
  return c;
}

/// Index of the first element whose bytes differ, -1 for none. Shapes must be equal.
inline std::int64_t first_difference(const tensor& a, const tensor& b) {
  if (a.dtype != b.dtype || a.rank != b.rank || a.numel() != b.numel()) return 0;
  std::vector<std::int64_t> from;
  for_each_offset(a, [&](std::int64_t, std::int64_t o) { from.push_back(o); });
  std::int64_t found = -1;
  const auto size = static_cast<std::size_t>(size_of(a.dtype));
  for_each_offset(b, [&](std::int64_t i, std::int64_t o) {
    const char *pa = static_cast<const char*>(a.data), *pb = static_cast<const char*>(b.data);
    if (found < 0 && std::memcmp(pa + static_cast<std::size_t>(from[static_cast<std::size_t>(i)]) * size,
                                 pb + static_cast<std::size_t>(o) * size, size) != 0)
      found = i;
  });
  return found;
}

/// f(field, tensor) for every given tensor of a problem, elements of lists too.
template <class P, class F>
void for_each_field(const P& p, F f) {
  for (const field_info& field : get_operation(P::name).fields) {
    if (field.kind == field_kind::tensor && field.tensor_in(&p).defined()) f(field, field.tensor_in(&p));
    if (field.kind == field_kind::tensor_list)
      for (std::int64_t i = 0; i < field.list_in(&p).size; ++i) f(field, field.list_in(&p)[i]);
  }
}

/// The problem over copies of its tensors, in memory of its own. Fields that must be contiguous get no gaps.
template <class P>
struct copied {
  memory mem;
  P p;
  std::deque<std::vector<tensor>> lists;

  explicit copied(const P& original, std::int64_t gap = 0, std::int64_t offset = 0) : p(original) {
    for (const field_info& f : get_operation(P::name).fields) {
      const std::int64_t g = f.layout == layout_rule::contiguous ? 0 : gap;
      if (f.kind == field_kind::tensor) f.tensor_in(&p) = copy(mem, f.tensor_in(&original), g, offset);
      if (f.kind == field_kind::tensor_list) {
        lists.emplace_back();
        const tensor_list& l = f.list_in(&original);
        for (std::int64_t i = 0; i < l.size; ++i) lists.back().push_back(copy(mem, l[i], g, offset));
        f.list_in(&p) = {lists.back().data(), l.size};
      }
    }
  }
  copied(const copied&) = delete;
};

/// Outputs of two problems over the same data must have equal bytes.
template <class P>
void require_same_outputs(const P& a, const P& b) {
  std::vector<tensor> other;
  for_each_field(b, [&](const field_info&, const tensor& t) { other.push_back(t); });
  std::size_t n = 0;
  for_each_field(a, [&](const field_info& f, const tensor& t) {
    if (f.role != field_role::in) {
      INFO(P::name << ": " << f.name << " " << t.text() << " against " << other[n].text());
      REQUIRE(first_difference(t, other[n]) == -1);
    }
    ++n;
  });
}

/// Runs over contiguous copies, twice, and over copies with gaps and offsets: the same bytes, and the gaps
/// stay poisoned.
template <class P>
void expect_layout_freedom(const P& p) {
  queue q{cpu_selector};
  copied<P> plain(p), again(p);
  run(q, plain.p);
  run(q, again.p);
  require_same_outputs(plain.p, again.p);
  CHECK(plain.mem.guards_intact());
  for (const std::int64_t offset : {1, 3, 15}) {
    copied<P> strided(p, 5, offset);
    run(q, strided.p);
    require_same_outputs(plain.p, strided.p);
    CHECK(strided.mem.guards_intact());
    for_each_field(strided.p, [&](const field_info& f, const tensor& t) {
      const auto span = static_cast<std::size_t>(t.span());
      const auto size = static_cast<std::size_t>(size_of(t.dtype));
      const auto* bytes = static_cast<const unsigned char*>(t.data);
      std::vector<bool> addressed(span, false);
      for_each_offset(t,
                      [&](std::int64_t, std::int64_t o) { addressed[static_cast<std::size_t>(o)] = true; });
      bool intact = true;
      for (std::size_t o = 0; o < span; ++o)
        if (!addressed[o])
          for (std::size_t b = 0; b < size; ++b) intact = intact && bytes[o * size + b] == memory::poison;
      INFO(P::name << ": between the rows of " << f.name);
      CHECK(intact);
    });
  }
}

/// Runs with every row of up to 8 more than 2^31 elements from the next one.
template <class P>
void expect_far_rows(const P& p) {
  queue q{cpu_selector};
  copied<P> plain(p), far(p);
  std::deque<reserved> spaces;
  for (const field_info& f : get_operation(P::name).fields) {
    if (f.kind != field_kind::tensor || f.layout == layout_rule::contiguous) continue;
    tensor& t = f.tensor_in(&far.p);
    if (!t.defined() || t.rank < 2 || t.extent(0) < 2 || t.extent(0) > 8 || t.numel() == 0) continue;
    t = far_copy(spaces, t);
    if (!t.data) {
      WARN("no address space for rows 2^31 elements apart");
      return;
    }
  }
  run(q, plain.p);
  run(q, far.p);
  require_same_outputs(plain.p, far.p);
}

/// The problem with another extent for a named dimension: every extent declared as exactly that name changes.
template <class P>
P resized(P p, std::string_view dimension, std::int64_t n) {
  for (const field_info& f : get_operation(P::name).fields) {
    if (f.kind != field_kind::tensor || !f.tensor_in(&p).defined()) continue;
    tensor& t = f.tensor_in(&p);
    for (const auto& a : f.shape.alternatives)
      if (static_cast<int>(a.extents.size()) == t.rank)
        for (std::size_t d = 0; d < a.extents.size(); ++d)
          if (a.extents[d].text() == dimension) {
            t.extents[d] = n;
            if (n == 0) t.data = nullptr;
          }
  }
  return p;
}

/// For operations whose tokens stand alone: the first token by itself gives the bytes it gives among others,
/// and no tokens at all are fine.
template <class P>
void expect_tokens_alone(const P& p) {
  queue q{cpu_selector};
  copied<P> all(p);
  copied<P> one(resized(p, "num_tokens", 1));
  run(q, all.p);
  run(q, one.p);
  require_same_outputs(one.p, resized(all.p, "num_tokens", 1));
  CHECK_NOTHROW(run(q, resized(p, "num_tokens", 0)));
  expect_far_rows(p);
}

}  // namespace portile::test

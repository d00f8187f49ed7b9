#include <algorithm>
#include <limits>

#include <portile/core/status.hpp>
#include <portile/core/tensor.hpp>

namespace portile {
namespace {

std::string list(const extents_t& v, int n) {
  std::string s = "[";
  for (int i = 0; i < n; ++i) s += (i ? ", " : "") + std::to_string(v[static_cast<std::size_t>(i)]);
  return s + "]";
}

bool has_zero_extent(const tensor& t) {
  for (int i = 0; i < t.rank; ++i)
    if (t.extent(i) == 0) return true;
  return false;
}

}  // namespace

extents_t contiguous_strides(std::span<const std::int64_t> extents) {
  extents_t s{};
  std::int64_t n = 1;
  for (std::size_t i = std::min<std::size_t>(extents.size(), max_rank); i-- > 0;) {
    s[i] = n;
    // Extents too large to multiply are refused by check(); here they must only not overflow.
    if (extents[i] > 0 && __builtin_mul_overflow(n, extents[i], &n))
      n = std::numeric_limits<std::int64_t>::max();
  }
  return s;
}

tensor make_tensor(void* data, dtype type, std::span<const std::int64_t> extents, device where) {
  const extents_t s = contiguous_strides(extents.first(std::min<std::size_t>(extents.size(), max_rank)));
  return make_tensor(data, type, extents,
                     std::span<const std::int64_t>(s).first(std::min<std::size_t>(extents.size(), max_rank)),
                     where);
}

tensor make_tensor(void* data, dtype type, std::span<const std::int64_t> extents,
                   std::span<const std::int64_t> strides, device where) {
  if (extents.size() > max_rank || strides.size() != extents.size())
    throw error(status_code::invalid_argument, "make_tensor: rank = " + std::to_string(extents.size()) +
                                                   ", strides = " + std::to_string(strides.size()) +
                                                   ": rank must be at most 5 with one stride per dimension");
  tensor t;
  t.data = data;
  t.dtype = type;
  t.rank = static_cast<std::int32_t>(extents.size());
  t.device = where;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    t.extents[i] = extents[i];
    t.strides[i] = strides[i];
  }
  return t;
}

bool tensor::contiguous() const {
  if (has_zero_extent(*this)) return true;
  std::int64_t n = 1;
  for (int i = rank; i-- > 0;) {
    if (extent(i) == 1) continue;
    if (stride(i) != n || __builtin_mul_overflow(n, extent(i), &n)) return false;
  }
  return true;
}

std::int64_t tensor::span() const {
  if (has_zero_extent(*this)) return 0;
  std::int64_t n = 1;
  for (int i = 0; i < rank; ++i) n += (extent(i) - 1) * stride(i);
  return n;
}

std::string tensor::text() const {
  if (!defined()) return "absent";
  if (rank < 0 || rank > max_rank) return std::string(to_string(dtype)) + " of rank " + std::to_string(rank);
  std::string s(to_string(dtype));
  s += list(extents, rank);
  if (!contiguous()) s += " strides " + list(strides, rank);
  return s + " on " + device.text();
}

}  // namespace portile

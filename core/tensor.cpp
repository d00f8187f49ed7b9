#include <portile/core/status.hpp>
#include <portile/core/tensor.hpp>

namespace portile {
namespace {

std::string list(const extents_t& v, int n) {
  std::string s = "[";
  for (int i = 0; i < n; ++i) s += (i ? ", " : "") + std::to_string(v[static_cast<std::size_t>(i)]);
  return s + "]";
}

}  // namespace

extents_t contiguous_strides(std::span<const std::int64_t> extents) {
  extents_t s{};
  std::int64_t n = 1;
  for (std::size_t i = extents.size(); i-- > 0;) {
    s[i] = n;
    n *= extents[i] > 0 ? extents[i] : 1;
  }
  return s;
}

tensor make_tensor(void* data, dtype type, std::span<const std::int64_t> extents, device where) {
  const extents_t s = contiguous_strides(extents.first(std::min<std::size_t>(extents.size(), max_rank)));
  return make_tensor(data, type, extents, std::span<const std::int64_t>(s).first(std::min<std::size_t>(extents.size(), max_rank)),
                     where);
}

tensor make_tensor(void* data, dtype type, std::span<const std::int64_t> extents,
                   std::span<const std::int64_t> strides, device where) {
  if (extents.size() > max_rank || strides.size() != extents.size())
    throw error(status_code::invalid_argument,
                "make_tensor: rank = " + std::to_string(extents.size()) + ", strides = " +
                    std::to_string(strides.size()) + ": rank must be at most 5 with one stride per dimension");
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
  if (numel() == 0) return true;
  std::int64_t n = 1;
  for (int i = rank; i-- > 0;) {
    if (extent(i) != 1 && stride(i) != n) return false;
    n *= extent(i);
  }
  return true;
}

std::int64_t tensor::span() const {
  if (numel() == 0) return 0;
  std::int64_t n = 1;
  for (int i = 0; i < rank; ++i) n += (extent(i) - 1) * stride(i);
  return n;
}

std::string tensor::text() const {
  if (!defined()) return "absent";
  std::string s(to_string(dtype));
  s += list(extents, rank);
  if (!contiguous()) s += " strides " + list(strides, rank);
  return s + " on " + device.text();
}

}  // namespace portile

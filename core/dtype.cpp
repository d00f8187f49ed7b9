#include <portile/core/dtype.hpp>

namespace portile {
namespace {

struct entry {
  std::string_view name;
  std::int64_t size;
};

constexpr entry table[num_dtypes] = {
    {"none", 0},     {"f32", 4},  {"f64", 8},    {"bf16", 2},   {"f16", 2},     {"e4m3", 1},
    {"e4m3fnuz", 1}, {"e5m2", 1}, {"e2m1x2", 1}, {"e5m6x8", 1}, {"ue8m0x4", 4}, {"i8", 1},
    {"i16", 2},      {"i32", 4},  {"i64", 8},    {"u8", 1},     {"u32", 4},     {"bool", 1},
};

// A dtype may come from the caller's uninitialised memory.
const entry& entry_of(dtype type) {
  static constexpr entry invalid{"invalid", 0};
  const int i = static_cast<int>(type);
  return i < num_dtypes ? table[i] : invalid;
}

}  // namespace

std::string_view to_string(dtype type) { return entry_of(type).name; }

dtype dtype_from_string(std::string_view name) {
  for (int i = 1; i < num_dtypes; ++i)
    if (table[i].name == name) return static_cast<dtype>(i);
  return dtype::none;
}

std::int64_t size_of(dtype type) { return entry_of(type).size; }

std::int64_t stored_extent(dtype type, std::int64_t values) {
  switch (type) {
    case dtype::e2m1x2:
      return (values + 1) / 2;
    case dtype::ue8m0x4:
      return (values + 3) / 4;
    case dtype::e5m6x8:
      return (values + 7) / 8 * 12;
    default:
      return values;
  }
}

std::int64_t value_extent(dtype type, std::int64_t stored) {
  switch (type) {
    case dtype::e2m1x2:
      return stored * 2;
    case dtype::ue8m0x4:
      return stored * 4;
    case dtype::e5m6x8:
      return stored / 12 * 8;
    default:
      return stored;
  }
}

std::string dtypes::text() const {
  std::string s;
  for (int i = 0; i < size_; ++i) {
    if (i) s += i + 1 == size_ ? " or " : ", ";
    s += to_string(list_[i]);
  }
  return s;
}

}  // namespace portile

#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <portile/core/dtype.hpp>

namespace portile::golden {

enum class compare_kind { bits, close, close_rowmax, ulp, code_rank, calc_diff };

/// How a result is compared with its golden array: the table "compare" of the golden data's README.
struct comparison {
  compare_kind kind = compare_kind::bits;
  bool any_nan = false;                        ///< bits: where the golden is NaN any NaN passes
  double rtol = 0, atol = 0;                   ///< close; rtol of close_rowmax
  double atol_times_rowmax = 0;                ///< close_rowmax
  std::optional<double> or_atol_times_rowmax;  ///< ulp
  double max = 0;                              ///< ulp, code_rank
  double max_fraction = 0;                     ///< code_rank
  double below = 0;                            ///< calc_diff
  std::string rows;                            ///< mask of the entries that count
  std::string exact_rows;                      ///< close: mask of the entries that must have equal bytes
};

/// A mask over the first dimension, or the first two: one byte per entry.
struct row_mask {
  std::vector<std::int64_t> shape;
  std::vector<unsigned char> bytes;
};

/// What differs, and where. The position is that of the first bad element, or of the worst one where a sum
/// decides.
struct difference {
  std::vector<std::int64_t> index;
  std::string expected, got, expected_bits, got_bits;
  std::string text;
};

/// Elements of one array, contiguous and row-major.
struct array_view {
  dtype type;
  std::span<const std::int64_t> shape;
  std::span<const unsigned char> bytes;
};

/// Empty when `got` passes. `rows` and `exact_rows` are the masks the comparison names, null without a name.
std::optional<difference> compare(const comparison& how, const array_view& expected, const array_view& got,
                                  const row_mask* rows = nullptr, const row_mask* exact_rows = nullptr);

/// True where the mask counts the element with this row-major number, or there is no mask.
bool counts(const row_mask* mask, std::span<const std::int64_t> shape, std::int64_t element);

/// One stored element as a number or a tuple of numbers, and its bits in hexadecimal.
std::string value_text(dtype type, const unsigned char* element);
std::string bits_text(dtype type, const unsigned char* element);

/// Coordinates of a row-major element number.
std::vector<std::int64_t> coordinates(std::span<const std::int64_t> shape, std::int64_t element);

/// A difference at this element.
difference difference_at(const array_view& expected, const array_view& got, std::int64_t element,
                         std::string text);

}  // namespace portile::golden

#pragma once
// A random problem of any operation, made from the declaration of its fields alone, with the memory of its tensors.
#include <deque>
#include <map>
#include <string>
#include <vector>

#include <portile/portile.hpp>

#include "fuzz/source.hpp"

namespace portile::fuzz {

/// Memory of one tensor between guard bands; under AddressSanitizer the bands are poisoned as well.
class buffer {
 public:
  static constexpr std::size_t band = 256;
  buffer(const tensor& t, std::int64_t span, int offset, field_role role);
  ~buffer();
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;

  std::uint8_t* data() { return bytes_.data() + first_; }
  std::size_t size() const { return size_; }
  /// What the launch will find; `restore` brings it back.
  void remember() { before_.assign(data(), data() + size_); }
  void restore() { std::copy(before_.begin(), before_.end(), data()); }
  bool guards_intact() const;
  bool unchanged() { return std::equal(before_.begin(), before_.end(), data()); }
  /// Whether the bytes that no element of the tensor covers are as before.
  bool gaps_unchanged();
  std::vector<std::uint8_t> contents() { return {data(), data() + size_}; }

  tensor view;
  field_role role;

 private:
  void guard(bool on) const;
  std::vector<std::uint8_t> bytes_, before_;
  std::size_t first_ = 0, size_;
};

class random_problem {
 public:
  random_problem(const op_info& op, source& from);

  const op_info& op() const { return problem.op(); }
  std::string text() const;  ///< every field, one a line

  any_problem problem;
  std::deque<buffer> buffers;
  bool runnable = true;  ///< false when a tensor is too large to have memory

 private:
  void choose_attributes();
  void choose_dimensions();
  void choose_outputs();
  void choose_strides(tensor& t, layout_rule rule);
  void damage();
  void give_memory();
  void fill(buffer& b);
  tensor shaped(const field_info& f);

  source& from_;
  environment env_;
  std::map<std::string, std::vector<tensor>> lists_;
  std::int64_t largest_ = 1;  ///< dimension: bounds the ids that tensors are filled with
};

}  // namespace portile::fuzz

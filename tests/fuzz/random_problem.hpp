#pragma once
// A random problem of any operation, made from the declaration of its fields alone, with the memory of its
// tensors.
#include <deque>
#include <functional>
#include <map>
#include <span>
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
  /// The bytes together with the guard bands around them.
  std::span<std::uint8_t> whole() { return {data() - band, size_ + 2 * band}; }
  bool unchanged() { return std::equal(before_.begin(), before_.end(), data()); }
  /// Whether the bytes that no element of the tensor covers are as before.
  bool gaps_unchanged();
  std::vector<std::uint8_t> contents() { return {data(), data() + size_}; }
  /// Whether AddressSanitizer refuses accesses to the guard bands.
  void guard(bool on) const;

  tensor view;
  field_role role;

 private:
  std::vector<std::uint8_t> bytes_, before_;
  std::size_t first_ = 0, size_;
};

/// Starts from random choices. Where check() refuses them, the argument that its text names is chosen anew,
/// so that most problems end up legal without anything here knowing an operation; a part of the problems is
/// then damaged in one place.
class random_problem {
 public:
  random_problem(const op_info& op, source& from);

  const op_info& op() const { return problem.op(); }
  std::string text() const;  ///< every field, one a line
  bool on_host() const;
  /// Puts all tensors but those of the host on a device, each with memory at address_there(its buffer).
  void move_to(device d, const std::function<void*(buffer&)>& address_there);

  any_problem problem;
  std::deque<buffer> buffers;
  bool runnable = true;  ///< false when a tensor is too large to have memory
  bool extreme = false;  ///< some input has values of any magnitude, infinities or NaN

 private:
  enum class layout { contiguous, padded, column_major, repeated };
  struct choice {  // of a tensor, or of all tensors of a list
    bool present = true;
    bool inferred = true;  // an output as infer gives it
    portile::dtype type = portile::dtype::none;
    int alternative = 0;  // of the declared shapes
    int leading = 0;      // extra dimensions of a shape that begins with "..."
    layout strides = layout::contiguous;
    int padding = 0;
    int count = 1;  // of a list
  };

  void choose(const field_info& f);
  void choose_attribute(const field_info& f, const std::vector<std::int64_t>& hints, std::string_view rule);
  std::int64_t choose_extent(const std::vector<std::int64_t>& hints);
  void bound_work();
  void build();
  tensor shaped(const field_info& f, const choice& c, const environment& env);
  void set_strides(tensor& t, const field_info& f, const choice& c);
  void repair();
  void choose_again(const std::string& refusal);
  void damage();
  void give_memory();
  void fill(buffer& b);
  static void keep_first_of_each(buffer& b);

  source& from_;
  std::map<std::string, std::int64_t, std::less<>> dimensions_;
  std::map<std::string, choice, std::less<>> choices_;
  std::map<std::string, std::vector<tensor>, std::less<>> lists_;
  std::int64_t largest_ = 1;  ///< dimension: bounds the ids that tensors are filled with
};

}  // namespace portile::fuzz

#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <portile/core/check.hpp>

namespace portile::tool {

/// A problem that is described, not allocated: tensors of the shapes that dimensions and attributes give, at
/// addresses that nobody may read. Good for check() and explain.
class described_problem {
 public:
  /// `settings` are key=value with key = attribute, dimension, FIELD.dtype, FIELD.strides or FIELD.offset;
  /// `with` names optional tensors that are given. Throws usage_error for unknown keys and missing
  /// dimensions.
  described_problem(const op_info& op, const std::vector<std::string>& settings,
                    const std::vector<std::string>& with, device where);

  const any_problem& problem() const { return problem_; }

 private:
  struct overrides {
    dtype type = dtype::none;
    std::vector<std::int64_t> strides;
    std::int64_t offset = 0;
  };

  void read(const std::string& setting);
  void read_field(const std::string& field, std::string_view property, const std::string& value);
  void add_inputs();
  void add_outputs();
  void set(const field_info& f, dtype type, const std::vector<std::int64_t>& extents,
           std::vector<std::int64_t> strides);
  std::vector<std::int64_t> declared(const field_info& f, dtype type) const;
  const overrides& of(const field_info& f) const;
  bool given(const field_info& f) const;

  const op_info& op_;
  any_problem problem_;
  environment env_;
  device where_;
  std::vector<std::string> with_;
  std::map<std::string, overrides, std::less<>> overrides_;
  std::vector<std::unique_ptr<tensor>> list_elements_;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 40;
};

}  // namespace portile::tool

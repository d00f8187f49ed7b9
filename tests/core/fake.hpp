#pragma once
// The fake backends of tests/core/plugins inside this process, and short ways to make problems for them.
#include <string>
#include <vector>

#include <portile/portile.hpp>

#include "core/plugins/fake_gpu.hpp"
#include "core/test_op.hpp"

namespace portile::test {

/// Folder of the program / folder of the test plug-ins, seen from it.
std::string program_folder();
std::string plugin_file(const std::string& name);

/// Counters and switches of the fake device; makes sure that it is loaded.
fake_gpu_control& fake_gpu();

/// Memory that counts as the fake device's.
class device_memory {
 public:
  tensor make(dtype type, std::vector<std::int64_t> extents, std::vector<std::int64_t> strides = {},
              int ordinal = 0) {
    tensor t = strides.empty()
                   ? make_tensor(nullptr, type, std::span<const std::int64_t>(extents),
                                 device(device_kind::cuda, ordinal))
                   : make_tensor(nullptr, type, std::span<const std::int64_t>(extents),
                                 std::span<const std::int64_t>(strides), device(device_kind::cuda, ordinal));
    buffers_.emplace_back(static_cast<std::size_t>(t.span() * size_of(type)) + 512, '\x5A');
    char* p = buffers_.back().data();
    t.data = p + (256 - reinterpret_cast<std::uintptr_t>(p) % 256) % 256;
    return t;
  }

 private:
  std::vector<std::vector<char>> buffers_;
};

inline float* floats(const tensor& t) { return static_cast<float*>(t.data); }

/// rows x columns with x[i] = i.
inline scale_rows make_problem(device_memory& m, std::int64_t rows, std::int64_t columns) {
  scale_rows p;
  p.x = m.make(dtype::f32, {rows, columns});
  p.out = m.make(dtype::f32, {rows, columns});
  for (std::int64_t i = 0; i < rows * columns; ++i) floats(p.x)[i] = static_cast<float>(i);
  return p;
}
inline scale_rows on_host(scale_rows p) {
  for (tensor* t : {&p.x, &p.out, &p.total})
    if (t->defined()) t->device = device{};
  return p;
}

inline void run(queue& q, const scale_rows& p, const run_options& o = {}) {
  portile::detail::run(q, scale_rows_info(), &p, o);
}
inline status check_of(const scale_rows& p) { return portile::check(scale_rows_info(), &p); }

/// Code and text of what f throws; ok when it throws nothing.
template <class F>
status thrown_by(F f) {
  try {
    f();
    return {};
  } catch (const error& e) {
    return {e.code(), e.what()};
  }
}

}  // namespace portile::test

/// The part must occur in the text.
#define CHECK_HAS(whole, part)                            \
  do {                                                    \
    const std::string text_of_check = whole;              \
    INFO(text_of_check);                                  \
    CHECK(text_of_check.find(part) != std::string::npos); \
  } while (false)

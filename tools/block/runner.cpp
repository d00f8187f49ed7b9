#include "block/runner.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <portile/core/numeric/bf16.hpp>

namespace portile::block {
namespace {

// A copy of a problem whose tensors lie in host memory.
class host_copy {
 public:
  host_copy(queue& q, const op_info& op, const void* problem) : op_(op), problem_(op.make()) {
    op.assign(problem_.get(), problem);
    for (const field_info& f : op.fields) {
      if (f.kind != field_kind::tensor) continue;
      tensor& t = f.tensor_in(problem_.get());
      if (!t.defined()) continue;
      buffers_.push_back(
          std::make_unique<std::vector<char>>(static_cast<std::size_t>(t.span() * size_of(t.dtype)) + 256));
      std::vector<char>& b = *buffers_.back();
      char* p = b.data() + (256 - reinterpret_cast<std::uintptr_t>(b.data()) % 256) % 256;
      memcpy(q, p, t.data, static_cast<std::size_t>(t.span() * size_of(t.dtype)));
      t.data = p;
      t.device = device{};
    }
    q.wait();
  }
  const void* problem() const { return problem_.get(); }
  const tensor& operator[](const field_info& f) const {
    return f.tensor_in(static_cast<const void*>(problem_.get()));
  }

 private:
  const op_info& op_;
  std::shared_ptr<void> problem_;
  std::vector<std::unique_ptr<std::vector<char>>> buffers_;
};

double value(const tensor& t, std::int64_t i) {
  switch (t.dtype) {
    case dtype::f32:
      return static_cast<const float*>(t.data)[i];
    case dtype::bf16:
      return numeric::to_float(static_cast<const numeric::bf16*>(t.data)[i]);
    default:
      return 0;
  }
}

// Largest difference of two contiguous tensors relative to the row's largest magnitude; a NaN on one side
// only is infinite.
double relative_difference(const tensor& got, const tensor& want) {
  const std::int64_t width = got.rank > 0 ? std::max<std::int64_t>(got.extent(got.rank - 1), 1) : 1;
  double worst = 0;
  for (std::int64_t row = 0; row < got.numel() / width; ++row) {
    double top = 0, off = 0;
    for (std::int64_t j = row * width; j < (row + 1) * width; ++j) {
      const double a = value(got, j), b = value(want, j);
      if (std::isnan(a) != std::isnan(b)) return INFINITY;
      if (std::isnan(b)) continue;
      top = std::max(top, std::fabs(b));
      if (a != b) off = std::max(off, std::fabs(a - b));  // equal infinities have no difference
    }
    if (off > 0) worst = std::max(worst, top > 0 ? off / top : INFINITY);
  }
  return worst;
}

double unequal_elements(const tensor& got, const tensor& want) {
  const std::int64_t size = size_of(got.dtype);
  double n = 0;
  for (std::int64_t i = 0; i < got.span(); ++i)
    n += std::memcmp(static_cast<const char*>(got.data) + i * size,
                     static_cast<const char*>(want.data) + i * size, static_cast<std::size_t>(size)) != 0;
  return n;
}

}  // namespace

store::~store() {
  try {
    queue_.wait();
    for (void* p : memory_) portile::free(p, queue_);
  } catch (const error&) {
    // The device is gone; there is nobody left to tell.
  }
}

tensor store::make(dtype type, std::initializer_list<std::int64_t> extents) {
  tensor t = make_tensor(nullptr, type, extents, queue_.get_device());
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(t.numel() * size_of(type), 1));
  memory_.push_back(malloc_device(bytes, queue_));
  t.data = memory_.back();
  memset(queue_, t.data, 0, bytes);
  return t;
}

tensor reshape(const tensor& t, std::initializer_list<std::int64_t> extents) {
  return make_tensor(t.data, t.dtype, extents, t.device);
}

void runner::run_erased(const std::string& name, const op_info& op, const void* problem,
                        const expectation& e) {
  plan chosen(queue_, op, problem, run_options{});
  std::unique_ptr<host_copy> reference;
  if (compare_) reference = std::make_unique<host_copy>(queue_, op, problem);

  const event before = queue_.record();
  chosen.run_erased(op, problem);
  const event after = queue_.record();
  queue_.wait();

  stage s;
  s.name = name;
  s.op = op.name;
  s.implementation = chosen.implementation();
  s.host_fallback = chosen.host_fallback();
  s.milliseconds = after.milliseconds_since(before);
  s.flop = e.flop;
  if (e.bytes) s.bytes = *e.bytes;
  if (!e.bytes)
    for (const field_info& f : op.fields)
      if (f.kind == field_kind::tensor && f.tensor_in(problem).defined())
        s.bytes += static_cast<double>(f.tensor_in(problem).numel() * size_of(f.tensor_in(problem).dtype)) *
                   (f.role == field_role::inout ? 2 : 1);

  if (reference) {
    queue host{cpu_selector};
    plan(host, op, reference->problem(), run_options{}).run_erased(op, reference->problem());
    const host_copy got(queue_, op, problem);
    s.compared = true;
    s.bound = e.bound;
    for (const field_info& f : op.fields) {
      if (f.kind != field_kind::tensor || f.role == field_role::in || !f.tensor_in(problem).defined())
        continue;
      const tensor& a = got[f];
      const tensor& b = (*reference)[f];
      const bool real = a.dtype == dtype::f32 || a.dtype == dtype::bf16;
      s.difference =
          std::max(s.difference, e.bound > 0 && real ? relative_difference(a, b) : unequal_elements(a, b));
    }
  }
  stages_.push_back(s);
  if (progress_) progress_(s);
}

bool runner::within_bounds() const {
  return std::all_of(stages_.begin(), stages_.end(),
                     [](const stage& s) { return !s.compared || s.difference <= s.bound; });
}

}  // namespace portile::block

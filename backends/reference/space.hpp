#pragma once
// What a reference is written with: Kokkos loops over unmanaged views of the problem's tensors. The subset
// compiles with Kokkos 3.4 to 5.
#include <Kokkos_Core.hpp>
#include <utility>

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e2m1.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/core/numeric/f16.hpp>
#include <portile/core/numeric/ue8m0.hpp>
#include <portile/core/status.hpp>
#include <portile/core/tensor.hpp>

namespace portile::reference {

/// Reports data that breaks a rule of the contract. Copied into functors.
class trap_sink {
 public:
  explicit trap_sink(std::uint64_t* word) : word_(word) {}
  /// `index`: flat index of the element; the smallest one over all threads is kept.
  KOKKOS_FUNCTION void raise(unsigned rule, std::int64_t index) const {
    if (word_) {
      const auto value = static_cast<std::uint64_t>(index) * 256 + rule;
      Kokkos::atomic_fetch_min(word_, value);
    }
  }

 private:
  std::uint64_t* word_;
};

/// Execution space, trap word, workspace and loops of one reference launch.
template <class Exec>
struct space {
  using exec_space = Exec;
  Exec exec;
  trap_sink trap;
  void* workspace = nullptr;  ///< as many bytes as the operation's workspace_bytes() says

  /// f(i) for i in [0, n), in any order.
  template <class F>
  void for_each(std::int64_t n, F f) const {
    if (n > 0)
      Kokkos::parallel_for("portile", Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, n),
                           f);
    exec.fence();
  }
  /// f(i, j) for i in [0, n), j in [0, m), in any order.
  template <class F>
  void for_each(std::int64_t n, std::int64_t m, F f) const {
    for_each(
        n * m, KOKKOS_LAMBDA(std::int64_t k) { f(k / m, k % m); });
  }
};

namespace detail {
template <class T, int Rank>
struct pointer_type {
  using type = typename pointer_type<T, Rank - 1>::type*;
};
template <class T>
struct pointer_type<T, 0> {
  using type = T;
};
}  // namespace detail

template <class T, int Rank>
using view = Kokkos::View<typename detail::pointer_type<T, Rank>::type, Kokkos::LayoutStride,
                          Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// Unmanaged view of a tensor; absent tensors give an empty view. T need not be const for inputs.
template <class T, int Rank>
view<T, Rank> make_view(const tensor& t) {
  if (t.defined() && t.rank != Rank)
    throw error(status_code::internal, "reference: view of rank " + std::to_string(Rank) + " of " + t.text());
  Kokkos::LayoutStride layout;
  for (int i = 0; i < Rank; ++i) {
    layout.dimension[i] = static_cast<std::size_t>(t.defined() ? t.extent(i) : 0);
    layout.stride[i] = static_cast<std::size_t>(t.defined() ? t.stride(i) : 0);
  }
  return view<T, Rank>(static_cast<T*>(t.data), layout);
}

/// Elements of a contiguous tensor that may be absent: null then, whatever its pointer holds.
template <class T>
const T* optional_data(const tensor& t) {
  return t.defined() ? static_cast<const T*>(t.data) : nullptr;
}

/// Calls f(T{}) with the element type that `type` stands for, out of the listed ones.
template <class... T, class F>
void visit(dtype type, F f) {
  const bool found = ((type == dtype_of<T> ? (f(T{}), true) : false) || ...);
  if (!found)
    throw error(status_code::internal, "reference: no code for dtype " + std::string(to_string(type)));
}

/// An element as fp32, and fp32 as an element: exact widening, one rounding.
KOKKOS_INLINE_FUNCTION float load(float x) { return x; }
KOKKOS_INLINE_FUNCTION float load(numeric::bf16 x) { return numeric::to_float(x); }
KOKKOS_INLINE_FUNCTION float load(numeric::f16 x) { return numeric::to_float(x); }
KOKKOS_INLINE_FUNCTION float load(numeric::e4m3 x) { return numeric::to_float(x); }
KOKKOS_INLINE_FUNCTION void store(float& to, float x) { to = x; }
KOKKOS_INLINE_FUNCTION void store(numeric::bf16& to, float x) { to = numeric::to_bf16(x); }
KOKKOS_INLINE_FUNCTION void store(numeric::f16& to, float x) { to = numeric::to_f16(x); }
KOKKOS_INLINE_FUNCTION void store(numeric::e4m3& to, float x) { to = numeric::to_e4m3(x); }

}  // namespace portile::reference

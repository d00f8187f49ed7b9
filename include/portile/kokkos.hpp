#pragma once
// Kokkos views as tensors, Kokkos execution spaces as queues. Optional: needs the consumer's Kokkos (3.4 or
// newer); Portile itself needs none. The CUDA and HIP branches are compiled only where that Kokkos has the
// space.
#include <Kokkos_Core.hpp>
#include <type_traits>

#include <portile/core/queue.hpp>
#include <portile/core/tensor.hpp>

namespace portile {
namespace detail {

/// dtype of a view's value type. Kokkos' own 16-bit types count where they are 16 bits wide.
template <class T>
constexpr dtype kokkos_dtype() {
  if constexpr (dtype_of<T> != dtype::none)
    return dtype_of<T>;
  else if constexpr (sizeof(T) == 2 && std::is_same_v<T, Kokkos::Experimental::half_t>)
    return dtype::f16;
#if KOKKOS_VERSION >= 30500
  else if constexpr (sizeof(T) == 2 && std::is_same_v<T, Kokkos::Experimental::bhalf_t>)
    return dtype::bf16;
#endif
  else if constexpr (std::is_integral_v<T>)  // long long beside long, and the like
    return std::is_signed_v<T> ? sizeof(T) == 8   ? dtype::i64
                                 : sizeof(T) == 4 ? dtype::i32
                                                  : dtype::none
           : sizeof(T) == 4    ? dtype::u32
                               : dtype::none;
  else
    return dtype::none;
}

}  // namespace detail

/// The device that an execution space instance runs on.
template <class Exec>
device device_of([[maybe_unused]] const Exec& exec) {
  static_assert(Kokkos::is_execution_space<Exec>::value, "portile: not a Kokkos execution space");
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>)
    return device(device_kind::cuda, exec.cuda_device());
  else
#endif
#ifdef KOKKOS_ENABLE_HIP
#if KOKKOS_VERSION >= 40000
      if constexpr (std::is_same_v<Exec, Kokkos::HIP>)
    return device(device_kind::hip, exec.hip_device());
#else
      if constexpr (std::is_same_v<Exec, Kokkos::Experimental::HIP>)
    return device(device_kind::hip, exec.hip_device());
#endif
  else
#endif
  {
    static_assert(Kokkos::SpaceAccessibility<Exec, Kokkos::HostSpace>::accessible,
                  "portile: no queue for this execution space");
    return {};
  }
}

/// Queue on the execution space's stream: Portile's work is in order with the instance's own. The instance
/// must outlive it. A host space gives a host queue, whose `run` returns after completion; fence the instance
/// first if it runs asynchronously.
template <class Exec>
queue make_queue(const Exec& exec, queue_properties properties = {}) {
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>)
    return queue::wrap(device_of(exec), exec.cuda_stream(), properties);
  else
#endif
#ifdef KOKKOS_ENABLE_HIP
#if KOKKOS_VERSION >= 40000
      if constexpr (std::is_same_v<Exec, Kokkos::HIP>)
#else
      if constexpr (std::is_same_v<Exec, Kokkos::Experimental::HIP>)
#endif
    return queue::wrap(device_of(exec), exec.hip_stream(), properties);
  else
#endif
    return queue(device_of(exec), properties);
}

/// View of the same memory, any rank up to 5, any layout. The view must stay alive while the tensor is used.
/// A view of const elements is for inputs only: Portile does not write to the inputs of an operation.
template <class DataType, class... Properties>
tensor make_tensor(const Kokkos::View<DataType, Properties...>& v) {
  using view = Kokkos::View<DataType, Properties...>;
  using value = std::remove_cv_t<typename view::value_type>;
  constexpr int rank = static_cast<int>(view::rank);
  constexpr dtype type = detail::kokkos_dtype<value>();
  static_assert(rank <= max_rank, "portile: views of rank up to 5");
  static_assert(type != dtype::none, "portile: no dtype for the view's value type");
  tensor t;
  t.data = const_cast<value*>(v.data());
  t.dtype = type;
  t.rank = rank;
  for (int i = 0; i < rank; ++i) {
    t.extents[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(v.extent(static_cast<std::size_t>(i)));
    t.strides[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(v.stride(static_cast<std::size_t>(i)));
  }
  if constexpr (!Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename view::memory_space>::accessible)
    t.device = device_of(typename view::execution_space());
  return t;
}

}  // namespace portile

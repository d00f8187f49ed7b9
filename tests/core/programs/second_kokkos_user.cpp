// A library with a second copy of Kokkos, loaded with dlopen(RTLD_LOCAL) by second_kokkos_loader.
#include <Kokkos_Core.hpp>

extern "C" __attribute__((visibility("default"))) int second_start() {
  if (!Kokkos::is_initialized()) Kokkos::initialize();
  return 0;
}
extern "C" __attribute__((visibility("default"))) int second_sum() {
  int sum = 0;
  Kokkos::parallel_reduce(
      "sum", 100, KOKKOS_LAMBDA(const int i, int& s) { s += i; }, sum);
  return sum;
}
extern "C" __attribute__((visibility("default"))) int second_is_initialized() {
  return Kokkos::is_initialized();
}
extern "C" __attribute__((visibility("default"))) int second_stop() { return Kokkos::finalize(), 0; }

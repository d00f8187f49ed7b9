// portile/kokkos.hpp: views become tensors, host execution spaces become queues.
#include <portile/core/numeric/e4m3.hpp>
#include <portile/kokkos.hpp>
#include <portile/portile.hpp>

#include "support/catch.hpp"

using namespace portile;
using host = Kokkos::HostSpace;

namespace {

// Unmanaged views need no initialised Kokkos.
template <class Type, class Layout>
using view = Kokkos::View<Type, Layout, host, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

}  // namespace

TEST_CASE("views of every layout and rank become tensors") {
  static float memory[240];
  const tensor right = make_tensor(view<float**, Kokkos::LayoutRight>(memory, 4, 6));
  CHECK(right.text() == "f32[4, 6] on cpu");
  CHECK(right.data == memory);
  const tensor left = make_tensor(view<float**, Kokkos::LayoutLeft>(memory, 4, 6));
  CHECK(left.text() == "f32[4, 6] strides [1, 4] on cpu");
  const tensor strided =
      make_tensor(view<float**, Kokkos::LayoutStride>(memory, Kokkos::LayoutStride(4, 12, 6, 2)));
  CHECK(strided.text() == "f32[4, 6] strides [12, 2] on cpu");
  const tensor readable = make_tensor(view<const float*, Kokkos::LayoutRight>(memory, 7));
  CHECK(readable.text() == "f32[7] on cpu");
  CHECK(make_tensor(view<float, Kokkos::LayoutRight>(memory)).rank == 0);
  CHECK(make_tensor(view<float*****, Kokkos::LayoutRight>(memory, 2, 3, 2, 4, 5)).text() ==
        "f32[2, 3, 2, 4, 5] on cpu");
  CHECK(make_tensor(view<float* [3], Kokkos::LayoutRight>(memory, 2)).text() == "f32[2, 3] on cpu");
  CHECK(make_tensor(view<float**, Kokkos::LayoutRight>(nullptr, 0, 6)).numel() == 0);
  const view<float**, Kokkos::LayoutRight> whole(memory, 10, 12);
  const auto part = Kokkos::subview(whole, std::pair<int, int>(2, 5), std::pair<int, int>(1, 7));
  const tensor slice = make_tensor(part);
  CHECK(slice.text() == "f32[3, 6] strides [12, 1] on cpu");
  CHECK(slice.data == memory + 25);
}

TEST_CASE("value types of views") {
  static std::int64_t memory[16];
  const auto type = [&]<class T>(T) {
    return make_tensor(view<T*, Kokkos::LayoutRight>(reinterpret_cast<T*>(memory), 2)).dtype;
  };
  CHECK(type(float{}) == dtype::f32);
  CHECK(type(double{}) == dtype::f64);
  CHECK(type(numeric::bf16{}) == dtype::bf16);
  CHECK(type(numeric::e4m3{}) == dtype::e4m3);
  CHECK(type(std::int8_t{}) == dtype::i8);
  CHECK(type(std::int32_t{}) == dtype::i32);
  CHECK(type(std::int64_t{}) == dtype::i64);
  CHECK(type((long long){}) == dtype::i64);
  CHECK(type(unsigned{}) == dtype::u32);
  CHECK(type(std::uint8_t{}) == dtype::u8);
  CHECK(type(bool{}) == dtype::boolean);
  const dtype half = detail::kokkos_dtype<Kokkos::Experimental::half_t>();
  CHECK(half == (sizeof(Kokkos::Experimental::half_t) == 2 ? dtype::f16 : dtype::f32));
}

TEST_CASE("an execution space instance becomes a queue, and Portile computes on views") {
  if (!Kokkos::is_initialized()) Kokkos::initialize();
  {
    const Kokkos::DefaultHostExecutionSpace exec;
    queue q = make_queue(exec, {.checked = true});
    CHECK(q.get_device() == device{});
    CHECK(q.properties().checked);
    Kokkos::View<float**, Kokkos::LayoutRight, host> x("x", 3, 128), sf("sf", 3, 1);
    Kokkos::View<numeric::e4m3**, Kokkos::LayoutRight, host> out("out", 3, 128);
    Kokkos::deep_copy(x, 2.f);
    quant::per_token_cast p;
    const Kokkos::View<const float**, Kokkos::LayoutRight, host> input = x;
    p.x = make_tensor(input);
    p.out = make_tensor(out);
    p.out_sf = make_tensor(sf);
    run(q, p);
    q.wait();
    CHECK(sf(2, 0) == 2.f / 448.f);
    CHECK(numeric::to_float(out(2, 127)) == 448.f);
  }
  Kokkos::finalize();
}

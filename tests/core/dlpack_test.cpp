// portile/dlpack.hpp, both ways.
#if !__has_include(<dlpack/dlpack.h>)
#include "support/catch.hpp"
TEST_CASE("dlpack") { WARN("not tested: no <dlpack/dlpack.h>"); }
#else
#include <portile/dlpack.hpp>

#include "core/fake.hpp"
#include "support/catch.hpp"

using namespace portile;
using namespace portile::test;

namespace {

DLTensor plain(void* data, std::int64_t* shape, int rank) {
  DLTensor d{};
  d.data = data;
  d.device.device_type = kDLCPU;
  d.ndim = rank;
  d.dtype = {kDLFloat, 32, 1};
  d.shape = shape;
  return d;
}

}  // namespace

TEST_CASE("a DLTensor becomes a tensor: strides, offset, devices") {
  float x[64] = {};
  std::int64_t shape[] = {3, 4, 2}, strides[] = {1, 8, 4};
  DLTensor d = plain(x, shape, 3);
  CHECK(make_tensor(d).text() == "f32[3, 4, 2] on cpu");
  d.strides = strides;
  CHECK(make_tensor(d).text() == "f32[3, 4, 2] strides [1, 8, 4] on cpu");
  d.byte_offset = 12;
  CHECK(make_tensor(d).data == x + 3);
  d.ndim = 0;
  CHECK(make_tensor(d).rank == 0);
  d.ndim = 1;
  d.data = nullptr;
  shape[0] = 0;
  CHECK(make_tensor(d).data == nullptr);
  CHECK(make_tensor(d).numel() == 0);
  const struct {
    int type;
    device where;
  } devices[] = {{1, {}}, {2, {device_kind::cuda, 5}}, {3, {}}, {10, {device_kind::hip, 5}}, {11, {}}};
  for (const auto& row : devices) {
    d.device.device_type = static_cast<DLDeviceType>(row.type);
    d.device.device_id = 5;
    CHECK(make_tensor(d).device == row.where);
  }
  d.device.device_type = static_cast<DLDeviceType>(7);
  CHECK_HAS(thrown_by([&] { make_tensor(d); }).text(), "dlpack: device_type = 7");
}

TEST_CASE("DLPack types, those newer than the header too") {
  float x[4] = {};
  std::int64_t shape[] = {1};
  DLTensor d = plain(x, shape, 1);
  const struct {
    int code, bits, lanes;
    dtype type;
  } rows[] = {{2, 32, 1, dtype::f32},      {2, 64, 1, dtype::f64},    {2, 16, 1, dtype::f16},
              {4, 16, 1, dtype::bf16},     {0, 8, 1, dtype::i8},      {0, 16, 1, dtype::i16},
              {0, 32, 1, dtype::i32},      {0, 64, 1, dtype::i64},    {1, 8, 1, dtype::u8},
              {1, 32, 1, dtype::u32},      {6, 8, 1, dtype::boolean}, {10, 8, 1, dtype::e4m3},
              {11, 8, 1, dtype::e4m3fnuz}, {12, 8, 1, dtype::e5m2},   {17, 4, 2, dtype::e2m1x2}};
  for (const auto& r : rows) {
    d.dtype = {static_cast<std::uint8_t>(r.code), static_cast<std::uint8_t>(r.bits),
               static_cast<std::uint16_t>(r.lanes)};
    const tensor t = make_tensor(d);
    CHECK(t.dtype == r.type);
    DLManagedTensor* back = to_dlpack(t);
    CHECK(back->dl_tensor.dtype.code == r.code);
    CHECK(back->dl_tensor.dtype.bits == r.bits);
    CHECK(back->dl_tensor.dtype.lanes == r.lanes);
    back->deleter(back);
  }
  for (const auto& r : {std::array{5, 64, 1}, {2, 32, 4}, {1, 64, 1}, {14, 8, 1}, {17, 4, 1}, {2, 8, 1}}) {
    d.dtype = {static_cast<std::uint8_t>(r[0]), static_cast<std::uint8_t>(r[1]),
               static_cast<std::uint16_t>(r[2])};
    const status s = thrown_by([&] { make_tensor(d); });
    CHECK(s.code() == status_code::unsupported);
    CHECK_HAS(s.text(), "has no Portile type");
  }
  for (const int rank : {-1, 6}) {
    d.ndim = rank;
    CHECK(thrown_by([&] { make_tensor(d); }).code() == status_code::unsupported);
  }
}

TEST_CASE("a tensor becomes a DLManagedTensor that keeps the memory") {
  auto memory = std::make_shared<std::vector<float>>(64);
  const tensor t = make_tensor(memory->data(), dtype::f32, {3, 4}, {1, 8}, device(device_kind::cuda, 1));
  DLManagedTensor* m = to_dlpack(t, memory);
  CHECK(memory.use_count() == 2);
  const tensor back = make_tensor(*m);
  CHECK(back.data == t.data);
  CHECK(back.text() == t.text());
  m->deleter(m);
  CHECK(memory.use_count() == 1);
  for (const dtype none : {dtype::ue8m0x4, dtype::e5m6x8, dtype::none}) {
    tensor odd = t;
    odd.dtype = none;
    CHECK(thrown_by([&] { to_dlpack(odd, memory); }).code() == status_code::unsupported);
  }
  tensor sycl = t;
  sycl.device = device(device_kind::sycl, 0);
  CHECK(thrown_by([&] { to_dlpack(sycl, memory); }).code() == status_code::unsupported);
  CHECK(memory.use_count() == 1);
#ifdef DLPACK_MAJOR_VERSION
  DLManagedTensorVersioned* v = to_dlpack_versioned(t, memory);
  CHECK(make_tensor(*v).text() == t.text());
  v->flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  CHECK(thrown_by([&] { make_tensor(*v, true); }).code() == status_code::invalid_argument);
  CHECK_NOTHROW(make_tensor(*v));
  v->version.major = 99;
  CHECK(thrown_by([&] { make_tensor(*v); }).code() == status_code::unsupported);
  v->deleter(v);
  CHECK(memory.use_count() == 1);
#endif
}
#endif

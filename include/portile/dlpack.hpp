#pragma once
// DLPack in both directions. Optional: needs the consumer's dlpack.h, any version from 0.6 (include another
// project's copy first, or have <dlpack/dlpack.h> on the include path). Type codes are compared as numbers,
// so that types newer than the header work; DLManagedTensorVersioned is there when the header has it (1.0).
#ifndef DLPACK_DLPACK_H_
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#else
#error "portile/dlpack.hpp needs a dlpack.h: include one first or add <dlpack/dlpack.h> to the include path"
#endif
#endif

#include <cstdint>
#include <memory>
#include <string>

#include <portile/core/status.hpp>
#include <portile/core/tensor.hpp>

namespace portile {
namespace detail {

// Codes of DLDataTypeCode, fixed for ever by DLPack's ABI.
enum dlpack_code : std::uint8_t {
  dl_int = 0,
  dl_uint = 1,
  dl_float = 2,
  dl_bfloat = 4,
  dl_bool = 6,
  dl_e4m3fn = 10,
  dl_e4m3fnuz = 11,
  dl_e5m2 = 12,
  dl_e2m1fn = 17,
};

struct dlpack_entry {
  portile::dtype type;
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
// The first entry of a dtype is the one written; all are read.
inline constexpr dlpack_entry dlpack_table[] = {
    {dtype::f32, dl_float, 32, 1},   {dtype::f64, dl_float, 64, 1},    {dtype::f16, dl_float, 16, 1},
    {dtype::bf16, dl_bfloat, 16, 1}, {dtype::e4m3, dl_e4m3fn, 8, 1},   {dtype::e4m3fnuz, dl_e4m3fnuz, 8, 1},
    {dtype::e5m2, dl_e5m2, 8, 1},    {dtype::e2m1x2, dl_e2m1fn, 4, 2}, {dtype::i8, dl_int, 8, 1},
    {dtype::i16, dl_int, 16, 1},     {dtype::i32, dl_int, 32, 1},      {dtype::i64, dl_int, 64, 1},
    {dtype::u8, dl_uint, 8, 1},      {dtype::u32, dl_uint, 32, 1},     {dtype::boolean, dl_bool, 8, 1},
};

// Device kinds and their numbers in DLDeviceType. Pinned host memory is host memory.
inline portile::device device_of(int type, int id) {
  switch (type) {
    case 1:   // kDLCPU
    case 3:   // kDLCUDAHost
    case 11:  // kDLROCMHost
      return {};
    case 2:  // kDLCUDA
      return {device_kind::cuda, id};
    case 10:  // kDLROCM
      return {device_kind::hip, id};
  }
  throw error(status_code::unsupported, "dlpack: device_type = " + std::to_string(type) +
                                            ": must be cpu, cuda, rocm or their pinned host memory");
}

// Owns what a DLTensor points to.
struct dlpack_shape {
  std::int64_t extents[max_rank] = {}, strides[max_rank] = {};
  std::shared_ptr<void> keep;
};

inline void fill_dltensor(DLTensor& d, const tensor& t, dlpack_shape& s) {
  const dlpack_entry* e = nullptr;
  for (const dlpack_entry& x : dlpack_table)
    if (!e && x.type == t.dtype) e = &x;
  if (!e)
    throw error(status_code::unsupported,
                "dlpack: dtype = " + std::string(to_string(t.dtype)) + ": has no DLPack type");
  int type = 1;
  if (t.device.kind() == device_kind::cuda) type = 2;
  if (t.device.kind() == device_kind::hip) type = 10;
  if (t.device.kind() == device_kind::sycl)
    throw error(status_code::unsupported,
                "dlpack: device = " + t.device.text() + ": must be cpu, cuda or hip");
  for (int i = 0; i < t.rank; ++i) {
    s.extents[i] = t.extent(i);
    s.strides[i] = t.stride(i);
  }
  d = {};
  d.data = t.data;
  d.device.device_type = static_cast<decltype(d.device.device_type)>(type);
  d.device.device_id = t.device.ordinal();
  d.ndim = t.rank;
  d.dtype.code = e->code;
  d.dtype.bits = e->bits;
  d.dtype.lanes = e->lanes;
  d.shape = s.extents;
  d.strides = s.strides;
}

template <class Managed>
struct dlpack_owner {
  Managed managed{};
  dlpack_shape shape;
};

template <class Managed>
Managed* make_managed(const tensor& t, std::shared_ptr<void> keep) {
  auto owner = std::make_unique<dlpack_owner<Managed>>();
  fill_dltensor(owner->managed.dl_tensor, t, owner->shape);
  owner->shape.keep = std::move(keep);
  owner->managed.manager_ctx = owner.get();
  owner->managed.deleter = [](Managed* m) {
    if (m) delete static_cast<dlpack_owner<Managed>*>(m->manager_ctx);
  };
  return &owner.release()->managed;
}

}  // namespace detail

/// View of the same memory. Null strides mean row-major. Throws unsupported for types, devices or ranks that
/// Portile lacks. Extents and strides are copied; the memory stays the producer's.
inline tensor make_tensor(const DLTensor& d) {
  if (d.ndim < 0 || d.ndim > max_rank)
    throw error(status_code::unsupported,
                "dlpack: ndim = " + std::to_string(d.ndim) + ": must be at most " + std::to_string(max_rank));
  tensor t;
  const auto lanes = static_cast<int>(d.dtype.lanes), bits = static_cast<int>(d.dtype.bits),
             code = static_cast<int>(d.dtype.code);
  for (const detail::dlpack_entry& e : detail::dlpack_table)
    if (e.code == code && e.bits == bits && e.lanes == lanes) t.dtype = e.type;
  if (!t.defined())
    throw error(status_code::unsupported, "dlpack: dtype = code " + std::to_string(code) + ", " +
                                              std::to_string(bits) + " bits, " + std::to_string(lanes) +
                                              " lanes: has no Portile type");
  t.device = detail::device_of(static_cast<int>(d.device.device_type), static_cast<int>(d.device.device_id));
  t.rank = d.ndim;
  for (int i = 0; i < t.rank; ++i) t.extents[static_cast<std::size_t>(i)] = d.shape[i];
  if (d.strides)
    for (int i = 0; i < t.rank; ++i) t.strides[static_cast<std::size_t>(i)] = d.strides[i];
  else
    t.strides = contiguous_strides({t.extents.data(), static_cast<std::size_t>(t.rank)});
  t.data = d.data ? static_cast<char*>(d.data) + d.byte_offset : nullptr;
  return t;
}
inline tensor make_tensor(const DLManagedTensor& m) { return make_tensor(m.dl_tensor); }

/// For a producer: the view as a DLManagedTensor, whose deleter the consumer calls. `keep` holds the memory
/// until then.
inline DLManagedTensor* to_dlpack(const tensor& t, std::shared_ptr<void> keep = {}) {
  return detail::make_managed<DLManagedTensor>(t, std::move(keep));
}

#ifdef DLPACK_MAJOR_VERSION  // since 1.0
/// `writable` says that the memory will be written to: a read-only tensor is then refused.
inline tensor make_tensor(const DLManagedTensorVersioned& m, bool writable = false) {
  if (m.version.major != DLPACK_MAJOR_VERSION)
    throw error(status_code::unsupported, "dlpack: version.major = " + std::to_string(m.version.major) +
                                              ": must be " + std::to_string(DLPACK_MAJOR_VERSION));
  if (writable && (m.flags & DLPACK_FLAG_BITMASK_READ_ONLY))
    throw error(status_code::invalid_argument, "dlpack: flags: the tensor is read-only");
  return make_tensor(m.dl_tensor);
}
inline DLManagedTensorVersioned* to_dlpack_versioned(const tensor& t, std::shared_ptr<void> keep = {}) {
  auto* m = detail::make_managed<DLManagedTensorVersioned>(t, std::move(keep));
  m->version.major = DLPACK_MAJOR_VERSION;
  m->version.minor = DLPACK_MINOR_VERSION;
  m->flags = 0;
  return m;
}
#endif

}  // namespace portile

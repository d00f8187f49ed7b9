#pragma once
#include <portile/core/dtype.hpp>

namespace portile::moe {

/// Element types that rows are moved in: every one whose extents count values. Packed scales move as i32.
inline constexpr dtypes movable_types{dtype::bf16,     dtype::f32,  dtype::e4m3, dtype::e2m1x2,
                                      dtype::e4m3fnuz, dtype::e5m2, dtype::f16,  dtype::f64,
                                      dtype::e5m6x8,   dtype::i8,   dtype::u8,   dtype::i16,
                                      dtype::i32,      dtype::u32,  dtype::i64,  dtype::boolean};

}  // namespace portile::moe

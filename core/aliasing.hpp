#pragma once
// Rules about tensors that share memory.
#include <portile/core/tensor.hpp>

namespace portile {

/// Whether both hold elements and begin at the same one: a buffer given twice.
inline bool same_buffer(const tensor& a, const tensor& b) {
  return a.defined() && b.defined() && a.data && a.data == b.data && a.numel() > 0 && b.numel() > 0;
}

}  // namespace portile

#pragma once
// Keys and values of the engram gate: packed in one tensor, or apart with strides. Host only.
#include <portile/core/check.hpp>

namespace portile::engram {

struct keys_and_values {
  tensor k;  ///< [num_tokens, mhc_mult, hidden_size]
  tensor v;  ///< [num_tokens, hidden_size]
};

/// Views of k and v, whichever form was given: rows 0 .. mhc_mult-1 of kv are k, the last row is v.
inline keys_and_values split_kv(const tensor& kv, const tensor& k, const tensor& v) {
  if (!kv.defined()) return {k, v};
  keys_and_values r{kv, kv};
  r.k.extents[1] -= 1;
  r.v.rank = 2;
  r.v.extents = {kv.extent(0), kv.extent(2)};
  r.v.strides = {kv.stride(0), kv.stride(2)};
  if (kv.data) r.v.data = static_cast<char*>(kv.data) + r.k.extent(1) * kv.stride(1) * size_of(kv.dtype);
  return r;
}

/// Exactly one of the two forms is given. `suffix` is "" for inputs, "_grad" for gradients.
inline bool check_kv(checker& c, const tensor& kv, const tensor& k, const tensor& v,
                     const std::string& suffix) {
  const std::string packed = "kv" + suffix, key = "k" + suffix, value = "v" + suffix;
  if (kv.defined())
    return c.need(!k.defined(), key, k, "must be absent: " + packed + " is given") &&
           c.need(!v.defined(), value, v, "must be absent: " + packed + " is given");
  return c.need(k.defined() || v.defined(), packed, "absent",
                packed + ", or " + key + " and " + value + ", must be given") &&
         c.need_both_or_none(key, k.defined(), value, v.defined());
}

}  // namespace portile::engram

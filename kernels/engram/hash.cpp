#include <portile/core/check.hpp>
#include <portile/kernels/engram/hash.hpp>

namespace portile::engram {

void hash::check(checker& c) const {
  c.need(c.dim("max_ngram_size") >= 1, "max_ngram_size", c.dim("max_ngram_size"), "must be at least 1");
}

void hash::infer(inference& i) const { i.out("out", dtype::i32); }

}  // namespace portile::engram

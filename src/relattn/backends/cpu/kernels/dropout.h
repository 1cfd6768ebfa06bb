// Dropout: the factor of a pair depends only on the seed, the head, the query and the key.
// Philox4x32-10 (Salmon et al. 2011) makes four words. Its counter is (j, i / 4, n, 0), with n the head counted over
// the batch. Its key is the seed's two halves. Word i % 4 belongs to pair (i, j): below keep_probability * 2^32 the
// pair is kept. i, j and n are counted in the whole call; this call may be a part of it.
#pragma once
#include "call.h"

namespace RELATTN_SET {

typedef uint32_t Words __attribute__((vector_size(BYTES)));

// high, low: the halves of the products x * m.
INLINE void multiply_words(Words x, uint32_t m, Words& high, Words& low) {
  typedef uint64_t Longs __attribute__((vector_size(BYTES)));
  constexpr uint64_t LOW = 0xffffffff;
  const Longs even = ((Longs)x & LOW) * uint64_t(m), odd = ((Longs)x >> 32) * uint64_t(m);
  low = (Words)((even & LOW) | (odd << 32));
  high = (Words)((even >> 32) | (odd & ~LOW));
}

struct Dropout {
  const uint32_t low, high, limit;      // the seed's halves; words below the limit keep
  const float factor;                   // of a weight that stays
  const Index query, key, head, heads;  // the first ones in the whole call, and the number of its heads

  explicit Dropout(const Call& call)
      : low(uint32_t(call.seed)),
        high(uint32_t(uint64_t(call.seed) >> 32U)),
        limit(uint32_t(call.keep_probability * 4294967296.0)),
        factor(call.keep_probability > 0.0 ? float(1.0 / call.keep_probability) : 0.0f),
        query(call.whole_query),
        key(call.whole_key),
        head(call.whole_head),
        heads(call.whole_heads) {}

  // Calls use(r, column, factors) for the rows i + r, r < rows, of head h of batch element b, and for one vector of the
  // columns from .. to - 1 at a time.
  template <class Use>
  void each(Index b, Index h, Index i, Index rows, Index j0, Index from, Index to, const Use& use) const {
    const Index first = query + i, n = b * heads + head + h;
    for (Index quad = first / 4; quad * 4 < first + rows; quad++)
      for (Index column = from; column < to; column += LANES) {
        Words words[4];
        draw(uint32_t(n), uint32_t(quad), uint32_t(key + j0 + column), words);
        for (int w = 0; w < 4; w++) {
          const Index r = quad * 4 + w - first;
          if (r >= 0 && r < rows) use(r, column, words[w] < limit ? splat(factor) : Vector{});
        }
      }
  }

 private:
  // The words of LANES counters, for the keys j, j + 1, ...
  void draw(uint32_t n, uint32_t quad, uint32_t j, Words (&x)[4]) const {
    x[0] = (Words)counting() + j, x[1] = Words{} + quad, x[2] = Words{} + n, x[3] = Words{};
    uint32_t key = low, other = high;
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
      Words high_0, low_0, high_2, low_2;
      multiply_words(x[0], 0xD2511F53, high_0, low_0);
      multiply_words(x[2], 0xCD9E8D57, high_2, low_2);
      x[0] = high_2 ^ x[1] ^ key, x[1] = low_2, x[2] = high_0 ^ x[3] ^ other, x[3] = low_0;
      key += 0x9E3779B9, other += 0xBB67AE85;
    }
  }
};

}  // namespace RELATTN_SET

// Rot(p) x: every pair (a, b) of a row's features becomes (a cos - b sin, b cos + a sin).
// A unit of work is a block of positions of one batch element, for all heads in turn. So their cosines and sines stay
// in the cache. A row's result depends only on the row.
#pragma once
#include <algorithm>

#include "elements.h"

namespace RELATTN_SET {

// One call, in the order in which cpu/rotation.py packs it. All fields are 8 bytes wide.
struct Rotation {
  static constexpr Index BLOCK = 32;  // positions

  const void* from;  // [B, H, L, width], the last axis contiguous; steps in numbers
  Index from_batch, from_head, from_row;
  void* to;                      // the same, contiguous
  const float *cosines, *sines;  // [L, pairs], or [B, L, pairs]
  Index table_batch;             // 0 where the batch shares them
  Index batch, heads, length, width, pairs;
  Index interleaved;  // 1: features 2 f and 2 f + 1 are a pair; 0: f and f + pairs. Other features stay as they are
  Index back;         // 1: by the negative angle
  Index narrow;       // 1: bfloat16, else float
  Index threads;

  Index blocks() const { return (length + BLOCK - 1) / BLOCK; }
  Index units() const { return batch * blocks(); }

  void run(Index unit) const {
    if (narrow)
      interleaved ? turn<BFloat16, true>(unit) : turn<BFloat16, false>(unit);
    else
      interleaved ? turn<float, true>(unit) : turn<float, false>(unit);
  }

 private:
  template <class Element, bool INTERLEAVED>
  void turn(Index unit) const {
    const Index b = unit / blocks(), first = unit % blocks() * BLOCK, end = std::min(first + BLOCK, length);
    for (Index h = 0; h < heads; h++)
      for (Index i = first; i < end; i++) {
        const Index table = b * table_batch + i * pairs;
        turn_row<Element, INTERLEAVED>(
            static_cast<const Element*>(from) + b * from_batch + h * from_head + i * from_row, cosines + table,
            sines + table, static_cast<Element*>(to) + ((b * heads + h) * length + i) * width);
      }
  }

  template <class Element, bool INTERLEAVED>
  void turn_row(const Element* x, const float* cos, const float* sin, Element* y) const {
    const Vector sign = splat(back ? -1.0f : 1.0f);
    for (Index f = 0; f < pairs; f += LANES) {
      const Index left = pairs - f;
      // The places where the numbers of these pairs begin, and how many of them lie in each of two vectors.
      const Index at = INTERLEAVED ? 2 * f : f, other = INTERLEAVED ? at + LANES : at + pairs;
      const Index count = INTERLEAVED ? 2 * left : left, rest = INTERLEAVED ? std::max(count - LANES, Index(0)) : left;
      Vector a = load_part(x + at, count), b = load_part(x + other, rest);
      if (INTERLEAVED) {
        const Vector low = a, high = b;
        a = even_lanes(low, high), b = odd_lanes(low, high);
      }
      const Vector c = load_part(cos + f, left), s = load_part(sin + f, left) * sign;
      const Vector first = a * c - b * s, second = b * c + a * s;
      store_part(y + at, count, INTERLEAVED ? first_halves(first, second) : first);
      store_part(y + other, rest, INTERLEAVED ? second_halves(first, second) : second);
    }
    if (width > 2 * pairs) std::memcpy(y + 2 * pairs, x + 2 * pairs, (width - 2 * pairs) * sizeof(Element));
  }
};

}  // namespace RELATTN_SET

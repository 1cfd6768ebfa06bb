// Rows as a caller holds them: float, bfloat16 or float16, any width, read without a copy.
#pragma once
#include "pairs.h"

namespace RELATTN_SET {

// float16: a sign, 5 bits of exponent e and 10 of fraction f. It is (1 + f / 1024) * 2^(e - 15); f * 2^-24 where e is
// 0; infinite or NaN where e is 31.
struct Half {
  uint16_t bits;
};

typedef uint16_t Bits16 __attribute__((vector_size(BYTES / 2), aligned(2), may_alias));
template <class Element>
INLINE Pairs bits_of(const Element* at) {
  return __builtin_convertvector(*reinterpret_cast<const Bits16*>(at), Pairs);
}

INLINE Vector load_elements(const float* at) { return load(at); }
INLINE Vector load_elements(const BFloat16* at) { return (Vector)(bits_of(at) << 16); }
INLINE Vector load_elements(const Half* at) {
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
#elif defined(__F16C__)
  return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
#else
  const Pairs bits = bits_of(at), size = bits & 0x7fff, shifted = size << 13;
  const Vector whole = size < 0x7c00 ? (Vector)(shifted + 0x38000000) : (Vector)(shifted | 0x7f800000);
  const Vector x = size < 0x400 ? __builtin_convertvector((Integers)size, Vector) * splat(0x1p-24f) : whole;
  return (Vector)((Pairs)x | (bits & 0x8000) << 16);
#endif
}

// The nearest bfloat16.
INLINE void store_elements(float* at, Vector x) { store(at, x); }
INLINE void store_elements(BFloat16* at, Vector x) {
  *reinterpret_cast<Bits16*>(at) = __builtin_convertvector(nearest(x), Bits16);
}

// The first n numbers at `at`, and zeros after them.
template <class Element>
INLINE Vector load_part(const Element* at, Index n) {
  if (n >= LANES) return load_elements(at);
  Element numbers[LANES] = {};
  std::memcpy(numbers, at, n * sizeof(Element));
  return load_elements(numbers);
}
// Writes the first n lanes of x, each as an Element.
template <class Element>
INLINE void store_part(Element* at, Index n, Vector x) {
  if (n >= LANES) return store_elements(at, x);
  Element numbers[LANES];
  store_elements(numbers, x);
  std::memcpy(at, numbers, n * sizeof(Element));
}

// to[k] = factor * from[k], zeros up to a whole vector.
INLINE void scaled(const float* from, Index width, float factor, float* to) {
  for (Index d = 0; d < width; d += LANES) store(to + d, load_part(from + d, width - d) * splat(factor));
}

// a . b; a is float.
template <class Element>
INLINE float dot(const float* a, const Element* b, Index width) {
  Vector s = {};
  for (Index d = 0; d < width; d += LANES) s += load_part(a + d, width - d) * load_part(b + d, width - d);
  return sum(s);
}

// Lane c of the answer is the sum of sums[c]. Vectors i and i + n / 2 are folded and interleaved, until one is left.
INLINE Vector sum_each(Vector (&sums)[LANES]) {
#pragma GCC unroll 4
  for (int n = LANES; n > 1; n /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; i++)
      sums[i] = first_halves(sums[i], sums[i + n / 2]) + second_halves(sums[i], sums[i + n / 2]);
  }
  return sums[0];
}

// Whether rows come from memory, or are still in a cache.
enum class From : uint8_t { CACHE, MEMORY };

// to[c] = x . row_of(c), for `count` rows. x: zeros up to a whole vector. Rows from memory are read two at a time: the
// processor asks ahead only for what is read nearly in order.
template <From FROM = From::CACHE, class RowOf>
INLINE void dot_each(const float* x, const RowOf& row_of, Index width, Index count, float* to) {
  constexpr int TOGETHER = FROM == From::MEMORY ? 2 : LANES;
  const Index whole = width / LANES * LANES;
  for (Index c = 0; c < count; c += LANES) {
    decltype(row_of(0)) row[LANES];  // after the last row the last row again
    for (int n = 0; n < LANES; n++) row[n] = row_of(c + n < count ? c + n : count - 1);
    Vector sums[LANES];
#pragma GCC unroll 16
    for (int m = 0; m < LANES; m += TOGETHER) {
#pragma GCC unroll 16
      for (int n = m; n < m + TOGETHER; n++) sums[n] = Vector{};
      for (Index d = 0; d < whole; d += LANES) {
        const Vector a = load(x + d);
#pragma GCC unroll 16
        for (int n = m; n < m + TOGETHER; n++) sums[n] += a * load_elements(row[n] + d);
      }
    }
    if (whole < width) {
      const Vector a = load(x + whole);
#pragma GCC unroll 16
      for (int n = 0; n < LANES; n++) sums[n] += a * load_part(row[n] + whole, width - whole);
    }
    store_part(to + c, count - c, sum_each(sums));
  }
}

// to[.] += sum_c weights[c] * row_of(c), for `count` rows. A weight of 0 belongs to a hidden pair: its row may hold
// anything.
template <class RowOf>
INLINE void add_each(const float* weights, const RowOf& row_of, Index width, Index count, float* to) {
  constexpr Index VECTORS = 4;
  Index d = 0;
  for (; d + VECTORS * LANES <= width; d += VECTORS * LANES) {
    Vector sums[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) sums[v] = load(to + d + v * LANES);
    for (Index c = 0; c < count; c++) {
      if (weights[c] == 0.0f) continue;
      const Vector w = broadcast(weights + c);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) sums[v] += w * load_elements(row_of(c) + d + v * LANES);
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) store(to + d + v * LANES, sums[v]);
  }
  for (; d < width; d += LANES) {
    Vector sums = load(to + d);
    for (Index c = 0; c < count; c++)
      if (weights[c] != 0.0f) sums += broadcast(weights + c) * load_part(row_of(c) + d, width - d);
    store(to + d, sums);
  }
}

// The same for rows that lie one after the other.
template <class Element>
static void add_rows(const float* weights, const Element* rows, Index step, Index width, Index count, float* to) {
  add_each(weights, [=](Index c) { return rows + c * step; }, width, count, to);
}
template <From FROM = From::CACHE, class Element>
static void dot_products(const float* x, const Element* rows, Index step, Index width, Index count, float* to) {
  dot_each<FROM>(x, [=](Index c) { return rows + c * step; }, width, count, to);
}

}  // namespace RELATTN_SET

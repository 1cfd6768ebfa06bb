// bfloat16 numbers two by two. A pair takes the place of a float. If the processor has the instruction for it, one step
// multiplies and adds both.
#pragma once
#include <type_traits>

#include "vector.h"

namespace RELATTN_SET {

#if defined(__AVX512BF16__)
constexpr bool DOTS = true;  // whether pairs are used: elsewhere their products take longer than those of floats
#else
constexpr bool DOTS = false;
#endif

// bfloat16: the upper half of a float's bits.
struct BFloat16 {
  uint16_t bits;
};

struct BFloat16x2 {
  BFloat16 first, second;
};

// A vector of pairs, the first numbers in the lower halves.
typedef uint32_t Pairs __attribute__((vector_size(BYTES)));
typedef uint32_t UnalignedPairs __attribute__((vector_size(BYTES), aligned(2), may_alias));

INLINE Pairs load(const BFloat16x2* at) { return *reinterpret_cast<const UnalignedPairs*>(at); }
INLINE void store(BFloat16x2* at, Pairs x) { *reinterpret_cast<UnalignedPairs*>(at) = x; }

// The pair that begins at any number.
INLINE Pairs broadcast(const BFloat16* at) {
#if defined(__AVX2__) && !defined(__SANITIZE_ADDRESS__)
  Pairs x;
  asm("vpbroadcastd %1, %0" : "=v"(x) : "m"(*reinterpret_cast<const BFloat16x2*>(at)));
  return x;
#else
  uint32_t pair;
  std::memcpy(&pair, at, sizeof pair);
  return Pairs{} + pair;
#endif
}
INLINE Pairs broadcast(const BFloat16x2* at) { return broadcast(&at->first); }

// sums += a * b; for pairs it adds the products of both numbers, the first one last. The instruction treats any number
// below 2^-126 as 0 and rounds to the nearest, in every mode of the processor.
INLINE void add_product(Vector& sums, Vector a, Vector b) { sums += a * b; }
INLINE void add_product(Vector& sums, Pairs a, Pairs b) {
#if defined(__AVX512BF16__)
  sums = (Vector)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
#else
  sums += (Vector)(a & 0xffff0000) * (Vector)(b & 0xffff0000);
  sums += (Vector)(a << 16) * (Vector)(b << 16);
#endif
}

// The bits of the nearest bfloat16; of two equally near ones, the even one. NaN stays NaN: its bits might carry.
INLINE Pairs nearest(Vector x) {
  const Pairs bits = (Pairs)x, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return x == x ? rounded : Pairs{} + 0x7fc0;
}

// Pairs made of floats that hold bfloat16 numbers, lane by lane.
INLINE Pairs paired(Vector first, Vector second) { return (Pairs)first >> 16 | ((Pairs)second & 0xffff0000); }

// at[0] ... = the bfloat16 numbers nearest to a, then those nearest to b.
INLINE void store_nearest(BFloat16* at, Vector a, Vector b) {
#if defined(__AVX512BF16__)
  const auto both = _mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
  std::memcpy(at, &both, sizeof both);
#else
  typedef uint16_t Halves __attribute__((vector_size(BYTES / 2)));
  const Halves halves[2] = {__builtin_convertvector(nearest(a), Halves), __builtin_convertvector(nearest(b), Halves)};
  std::memcpy(at, halves, sizeof halves);
#endif
}

// The pairs of the bfloat16 numbers nearest to a and to b, lane by lane.
INLINE Pairs nearest_pairs(Vector a, Vector b) {
#if defined(__AVX512BF16__)
  const __m512i lanes = _mm512_set1_epi32(0x00100000) + (__m512i)(counting() * 0x00010001);
  return (Pairs)_mm512_permutexvar_epi16(lanes, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
#else
  return nearest(a) | nearest(b) << 16;
#endif
}

// The Numbers, rounded up to whole vectors, that a row of `width` floats takes; width: a multiple of LANES.
template <class Number>
INLINE Index numbers_of(Index width) {
  if constexpr (std::is_same_v<Number, BFloat16x2>) return (width + LANES) / (2 * LANES) * LANES;
  return width;
}

INLINE Index numbers_of(Index width, bool pairs) {
  return pairs ? numbers_of<BFloat16x2>(width) : numbers_of<float>(width);
}

// The vector at number k of a row of floats as Numbers. Two vectors make one of pairs; a last one is paired with zeros.
template <class Number>
INLINE Vector numbers_at(const float* row, Index width, Index k) {
  if constexpr (std::is_same_v<Number, BFloat16x2>)
    return (Vector)paired(load(row + 2 * k), 2 * k + LANES < width ? load(row + 2 * k + LANES) : Vector{});
  return load(row + k);
}

}  // namespace RELATTN_SET

// One vector register of floats, of whatever width the compiler is asked for, and e^x.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// One namespace for each instruction set: the linker would take inline functions of one name for the same.
namespace RELATTN_SET {

using Index = int64_t;

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX2__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif

constexpr int LANES = BYTES / 4;
typedef float Vector __attribute__((vector_size(BYTES)));
typedef int32_t Integers __attribute__((vector_size(BYTES)));
typedef float Unaligned __attribute__((vector_size(BYTES), aligned(4), may_alias));

INLINE Vector load(const float* at) { return *reinterpret_cast<const Unaligned*>(at); }
INLINE void store(float* at, Vector x) { *reinterpret_cast<Unaligned*>(at) = x; }
INLINE Vector splat(float x) { return Vector{} + x; }

// Spelled out for AVX2 and later: GCC would load a vector and shuffle it.
INLINE Vector broadcast(const float* at) {
#if defined(__AVX2__)
  Vector x;
  asm("vbroadcastss %1, %0" : "=v"(x) : "m"(*at));
  return x;
#else
  return splat(*at);
#endif
}

INLINE Integers counting() {
  Integers n;
  for (int i = 0; i < LANES; i++) n[i] = i;
  return n;
}

#if defined(__AVX512F__)
INLINE Vector larger(Vector a, Vector b) { return (Vector)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE float largest(Vector x) { return _mm512_reduce_max_ps((__m512)x); }
INLINE float sum(Vector x) { return _mm512_reduce_add_ps((__m512)x); }
#else
INLINE Vector larger(Vector a, Vector b) { return a > b ? a : b; }
INLINE float largest(Vector x) {
  float m = x[0];
  for (int i = 1; i < LANES; i++) m = m > x[i] ? m : x[i];
  return m;
}
INLINE float sum(Vector x) {
  float s = 0;
  for (int i = 0; i < LANES; i++) s += x[i];
  return s;
}
#endif

// e^x for x <= 0; exactly 0 below -87, where a float would be subnormal. The error is below 2 units of the last place
// near 0 and grows by one for every 40 that x falls.
//
// x log2(e) = n + f with |f| <= 1/2; 2^f is a polynomial of degree 6, and n is added to the exponent.
INLINE Vector exponential(Vector x) {
  const Vector least = splat(-87.0f), log2e = splat(1.4426950408889634f);
  const Vector magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vector bounded = x > least ? x : least;
  const Vector shifted = bounded * log2e + magic;
  const Vector f = bounded * log2e - (shifted - magic);
  Vector p = splat(1.5403530393e-4f) * f + splat(1.3333558146e-3f);
  p = p * f + splat(9.6181291076e-3f);
  p = p * f + splat(5.5504108665e-2f);
  p = p * f + splat(2.4022650696e-1f);
  p = p * f + splat(6.9314718056e-1f);
  p = p * f + splat(1.0f);
  const Integers scaled = (Integers)p + ((Integers)shifted << 23);
  return x > least ? (Vector)scaled : (x == x ? Vector{} : x);
}

}  // namespace RELATTN_SET

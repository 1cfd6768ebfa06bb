// One vector register of floats, in the width that the compiler is told, and e^x.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

// One namespace per instruction set: the linker would treat inline functions with the same name as one function.
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
typedef int32_t UnalignedIntegers __attribute__((vector_size(BYTES), aligned(4), may_alias));

INLINE Vector load(const float* at) { return *reinterpret_cast<const Unaligned*>(at); }
INLINE void store(float* at, Vector x) { *reinterpret_cast<Unaligned*>(at) = x; }
INLINE Integers load(const int32_t* at) { return *reinterpret_cast<const UnalignedIntegers*>(at); }
INLINE void store(int32_t* at, Integers x) { *reinterpret_cast<UnalignedIntegers*>(at) = x; }
INLINE Vector splat(float x) { return x - Vector{}; }  // x - 0 is x for either sign of 0; 0 + x would be computed

// Written as an instruction for AVX2 and later: GCC would load a vector and shuffle it. The address sanitizer does not
// check it.
INLINE Vector broadcast(const float* at) {
#if defined(__AVX2__) && !defined(__SANITIZE_ADDRESS__)
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

// Whether all lanes hold one number.
INLINE bool all_equal(Integers x) {
  typedef uint64_t Longs __attribute__((vector_size(BYTES)));
  const Longs same = (Longs)(x == Integers{} + x[0]);
  uint64_t all = UINT64_MAX;
  for (int n = 0; n < LANES / 2; n++) all &= same[n];
  return all == UINT64_MAX;
}

using Lanes = std::make_integer_sequence<int, LANES>;

// Lane by lane a, b, a, b, ... of the first half of both, from lane FIRST on, or of the second.
template <int FIRST, int... N>
INLINE Vector woven_halves(Vector a, Vector b, std::integer_sequence<int, N...>) {
  return __builtin_shufflevector(a, b, (FIRST + N / 2 + N % 2 * LANES)...);
}
INLINE Vector first_halves(Vector a, Vector b) { return woven_halves<0>(a, b, Lanes()); }
INLINE Vector second_halves(Vector a, Vector b) { return woven_halves<LANES / 2>(a, b, Lanes()); }

// And back: the lanes FIRST, FIRST + 2, ... of a and then of b.
template <int FIRST, int... N>
INLINE Vector every_other(Vector a, Vector b, std::integer_sequence<int, N...>) {
  return __builtin_shufflevector(a, b, (FIRST + 2 * N)...);
}
INLINE Vector even_lanes(Vector a, Vector b) { return every_other<0>(a, b, Lanes()); }
INLINE Vector odd_lanes(Vector a, Vector b) { return every_other<1>(a, b, Lanes()); }

// Lane c of rows[k] becomes lane k of rows[c]: rows i and i + LANES / 2 are interleaved, log2(LANES) times.
INLINE void transpose(Vector (&rows)[LANES]) {
  Vector woven[LANES];
#pragma GCC unroll 4
  for (int stage = 1; stage < LANES; stage *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) {
      woven[2 * i] = first_halves(rows[i], rows[i + LANES / 2]);
      woven[2 * i + 1] = second_halves(rows[i], rows[i + LANES / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) rows[i] = woven[i];
  }
}

// x = n ln(2) + r, and 2^n.
struct Parted {
  Vector r, power;
};

// With |r| <= ln(2) / 2, for x <= 0. ln(2) has two parts; n times the first is exact, with or without fused products.
// 2^n is a float whose exponent is n + 127. Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest
// bits.
INLINE Parted parted(Vector x) {
  const Vector magic = splat(12582912.0f + 127.0f);
  const Vector shifted = x * splat(1.4426950408889634f) + magic;
  const Vector n = shifted - magic;
  return {x - n * splat(0.693359375f) + n * splat(2.12194440e-4f), (Vector)((Integers)shifted << 23)};
}

// e^x = 2^n e^r for x <= 0. e^r is a polynomial of degree 6, within a few units of the last place. The result is
// exactly 0 below -87, a little before a float would be subnormal, and NaN for NaN.
INLINE Vector exponential(Vector x) {
  const auto [r, power] = parted(x);
  Vector p = splat(1.0f / 720) * r + splat(1.0f / 120);
  p = p * r + splat(1.0f / 24);
  p = p * r + splat(1.0f / 6);
  p = p * r + splat(0.5f);
  p = p * r + splat(1.0f);
  p = p * r + splat(1.0f);
  return x < splat(-87.0f) ? Vector{} : p * power;
}

// tanh(x), and its derivative 1 - tanh(x)^2.
struct ValueAndDerivative {
  Vector value, derivative;
};

// Both within a few units of the last place, for small and for large x; NaN for NaN.
//
// With E = e^(-2 |x|), tanh(|x|) = (1 - E) / (1 + E), and its derivative is 4 E / (1 + E)^2. Near 0, 1 - E would lose
// digits. So E - 1 = 2^n (e^r - 1) + (2^n - 1) comes from the polynomial of `exponential` without its 1, with one
// degree more.
INLINE ValueAndDerivative tanh_and_derivative(Vector x) {
  Vector y = x < splat(0.0f) ? x + x : -(x + x);
  y = y < splat(-60.0f) ? splat(-60.0f) : y;
  const auto [r, power] = parted(y);
  Vector p = splat(1.0f / 5040) * r + splat(1.0f / 720);
  p = p * r + splat(1.0f / 120);
  p = p * r + splat(1.0f / 24);
  p = p * r + splat(1.0f / 6);
  p = p * r + splat(0.5f);
  p = p * r * r + r;
  const Vector decayed = power * p + power, sum = decayed + splat(1.0f);  // E and 1 + E
  const Vector less_one = power * p + (power - splat(1.0f));              // not E - 1, which loses digits near 0
  const Vector size = less_one / sum;                                     // of tanh, below 0
  return {x < splat(0.0f) ? size : -size, splat(4.0f) * decayed / (sum * sum)};
}

}  // namespace RELATTN_SET

// The two micro-kernels under all others. Their sums stay in registers.
#pragma once
#include "pairs.h"

namespace RELATTN_SET {

#if defined(__AVX512F__)
constexpr int ROWS = 12, PANEL_VECTORS = 2, NN_ROWS = 6, NN_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int ROWS = 6, PANEL_VECTORS = 2, NN_ROWS = 6, NN_VECTORS = 2;
#else
constexpr int ROWS = 6, PANEL_VECTORS = 4, NN_ROWS = 6, NN_VECTORS = 4;
#endif
constexpr int PANEL = PANEL_VECTORS * LANES;  // columns of a packed panel
constexpr int SHORT_ROWS = ROWS / 3;          // a group with no more rows than these is multiplied as so many

INLINE Index rounded_up(Index n, Index step) { return (n + step - 1) / step * step; }
INLINE Index floor_divided(Index n, Index step) { return n >= 0 ? n / step : -((step - 1 - n) / step); }

template <int R = ROWS>
using Sums = Vector[R][PANEL_VECTORS];

// work(Width<n>): n is the width if it is a usual one, so that the addresses of rows are constants; else n is 0.
template <int N>
struct Width {
  static constexpr int known = N;
};

template <class Work>
INLINE void by_width(Index width, const Work& work) {
  switch (width) {
    case 32:
      return work(Width<32>());
    case 64:
      return work(Width<64>());
    case 128:
      return work(Width<128>());
    default:
      return work(Width<0>());
  }
}

// work(GroupOf<n>): n is SHORT_ROWS if they suffice for `real` rows, else ROWS.
template <int N>
struct GroupOf {
  static constexpr int rows = N;
};

template <class Work>
INLINE void by_rows(Index real, const Work& work) {
  if (real <= SHORT_ROWS)
    work(GroupOf<SHORT_ROWS>());
  else
    work(GroupOf<ROWS>());
}

// nt: sums[r][.] += sum_k rows[r][k] * panel[k][.]. These are dot products of R rows, one after the other, with the
//     PANEL rows that a panel holds transposed. width: in Numbers.
template <int KNOWN, int R, class Number>
INLINE void multiply_nt(const Number* __restrict rows, const Number* __restrict panel, Index runtime_width,
                        Sums<R>& sums) {
  const Index width = KNOWN ? KNOWN : runtime_width;
#pragma GCC unroll 4
  for (Index k = 0; k < width; k++) {
    decltype(load(panel)) b[PANEL_VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < PANEL_VECTORS; v++) b[v] = load(panel + k * PANEL + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const auto a = broadcast(rows + r * width + k);
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++) add_product(sums[r][v], a, b[v]);
    }
  }
}

// to[r][.] += sum_k factors[r * row_step + k * column_step] * rows[k][.], for NN_ROWS rows and VECTORS vectors of them.
template <int VECTORS, class Factor, class Number>
INLINE void multiply_nn_part(const Factor* __restrict factors, Index row_step, Index column_step,
                             const Number* __restrict rows, Index rows_step, Index count, float* __restrict to,
                             Index to_step) {
  Vector sums[NN_ROWS][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < NN_ROWS; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) sums[r][v] = load(to + r * to_step + v * LANES);
  }
#pragma GCC unroll 1
  for (Index k = 0; k < count; k++) {
    decltype(load(rows)) b[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) b[v] = load(rows + k * rows_step + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < NN_ROWS; r++) {
      const auto a = broadcast(factors + r * row_step + k * column_step);
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) add_product(sums[r][v], a, b[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < NN_ROWS; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) store(to + r * to_step + v * LANES, sums[r][v]);
  }
}

// nn: to[r][.] += sum_k factors[r][k] * rows[k][.] for NN_ROWS rows. The factors lie at any strides, so the diagonals
// of a matrix are read like its rows. width: a multiple of LANES.
// With pairs in place of floats, rows[k] holds two rows, and a factor is a pair, which may begin at any number. Column
// steps are then 2.
template <class Factor, class Number>
INLINE void multiply_nn(const Factor* factors, Index row_step, Index column_step, const Number* rows, Index rows_step,
                        Index count, float* to, Index to_step, Index width) {
  if (count <= 0) return;
  Index d = 0;
#pragma GCC unroll 1
  for (; d + NN_VECTORS * LANES <= width; d += NN_VECTORS * LANES)
    multiply_nn_part<NN_VECTORS>(factors, row_step, column_step, rows + d, rows_step, count, to + d, to_step);
  if constexpr (NN_VECTORS > 2) {  // only six sums, of one vector, would wait for one another
#pragma GCC unroll 1
    for (; d + 2 * LANES <= width; d += 2 * LANES)
      multiply_nn_part<2>(factors, row_step, column_step, rows + d, rows_step, count, to + d, to_step);
  }
  if (d < width) multiply_nn_part<1>(factors, row_step, column_step, rows + d, rows_step, count, to + d, to_step);
}

// panel[k][c] = number k of rows[first + c]. After row count - 1 comes the row `beyond`, or zeros if it is null. Floats
// that are packed as pairs must hold bfloat16 numbers. width: a multiple of LANES.
template <class Number>
static void pack_panel(const float* rows, Index row_step, Index width, Index first, Index count, const float* beyond,
                       Number* __restrict panel) {
  for (Index c = 0; c < PANEL; c += LANES)
    for (Index k = 0; k < numbers_of<Number>(width); k += LANES) {
      Vector columns[LANES];
#pragma GCC unroll 16
      for (int n = 0; n < LANES; n++) {
        const float* row = first + c + n < count ? rows + (first + c + n) * row_step : beyond;
        columns[n] = row ? numbers_at<Number>(row, width, k) : Vector{};
      }
      transpose(columns);
#pragma GCC unroll 16
      for (int n = 0; n < LANES; n++) store(reinterpret_cast<float*>(panel + (k + n) * PANEL + c), columns[n]);
    }
}

// to[m] = the rows 2 m and 2 m + 1 of 0 .. count - 1, two by two; zeros after the last one.
INLINE void pair_rows(const float* rows, Index row_step, Index width, Index count, BFloat16x2* to) {
  for (Index m = 0; m < (count + 1) / 2; m++) {
    const float* row = rows + 2 * m * row_step;
    for (Index d = 0; d < width; d += LANES)
      store(to + m * width + d, paired(load(row + d), 2 * m + 1 < count ? load(row + row_step + d) : Vector{}));
  }
}

// The sum of row[from] .. row[stop - 1].
INLINE float total(const float* row, Index from, Index stop) {
  Vector sums = {};
  for (; from + LANES <= stop; from += LANES) sums += load(row + from);
  float rest = sum(sums);
  for (; from < stop; from++) rest += row[from];
  return rest;
}

// The largest of row[0] .. row[count - 1]; -inf if there is none.
INLINE float largest_of(const float* row, Index count) {
  Vector most = splat(-INFINITY);
  Index c = 0;
  for (; c + LANES <= count; c += LANES) most = larger(most, load(row + c));
  float rest = largest(most);
  for (; c < count; c++) rest = std::max(rest, row[c]);
  return rest;
}

// All panels of the rows 0 .. count - 1.
template <class Number>
static void pack_panels(const float* rows, Index row_step, Index width, Index count, Number* panels) {
  for (Index first = 0; first < count; first += PANEL)
    pack_panel(rows, row_step, width, first, count, nullptr, panels + first * numbers_of<Number>(width));
}

// to[k] += factor * row[k].
INLINE void add_row(float* to, const float* row, float factor, Index width) {
  for (Index d = 0; d < width; d += LANES) store(to + d, load(to + d) + splat(factor) * load(row + d));
}

}  // namespace RELATTN_SET

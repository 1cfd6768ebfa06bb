// The two micro-kernels that carry everything. Their sums stay in registers.
#pragma once
#include "vector.h"

namespace RELATTN_SET {

#if defined(__AVX512F__)
constexpr int ROWS = 12, PANEL_VECTORS = 2, NN_ROWS = 6, NN_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int ROWS = 6, PANEL_VECTORS = 2, NN_ROWS = 6, NN_VECTORS = 2;
#else
constexpr int ROWS = 6, PANEL_VECTORS = 4, NN_ROWS = 6, NN_VECTORS = 4;
#endif
constexpr int PANEL = PANEL_VECTORS * LANES;  // columns of a packed panel

INLINE Index rounded_up(Index n, Index step) { return (n + step - 1) / step * step; }
INLINE Index floor_divided(Index n, Index step) { return n >= 0 ? n / step : -((step - 1 - n) / step); }

using Sums = Vector[ROWS][PANEL_VECTORS];

// work(Width<n>) with n the width where it is a usual one, so that the addresses of rows are constants; else n is 0.
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

// nt: sums[r][.] += sum_k rows[r][k] * panel[k][.]: dot products of ROWS rows, one after the other, with the PANEL rows
// that a panel holds transposed.
template <int KNOWN>
INLINE void multiply_nt(const float* __restrict rows, const float* __restrict panel, Index given, Sums& sums) {
  const Index width = KNOWN ? KNOWN : given;
#pragma GCC unroll 4
  for (Index k = 0; k < width; k++) {
    Vector b[PANEL_VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < PANEL_VECTORS; v++) b[v] = load(panel + k * PANEL + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      const Vector a = broadcast(rows + r * width + k);
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++) sums[r][v] += a * b[v];
    }
  }
}

// to[r][.] += sum_k factors[r * row_step + k * column_step] * rows[k][.], for NN_ROWS rows and VECTORS vectors of them.
template <int VECTORS>
INLINE void multiply_nn_part(const float* __restrict factors, Index row_step, Index column_step,
                             const float* __restrict rows, Index rows_step, Index count, float* __restrict to,
                             Index to_step) {
  Vector sums[NN_ROWS][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < NN_ROWS; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) sums[r][v] = load(to + r * to_step + v * LANES);
  }
#pragma GCC unroll 1
  for (Index k = 0; k < count; k++) {
    Vector b[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) b[v] = load(rows + k * rows_step + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < NN_ROWS; r++) {
      const Vector a = broadcast(factors + r * row_step + k * column_step);
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) sums[r][v] += a * b[v];
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
INLINE void multiply_nn(const float* factors, Index row_step, Index column_step, const float* rows, Index rows_step,
                        Index count, float* to, Index to_step, Index width) {
  if (count <= 0) return;
  Index d = 0;
#pragma GCC unroll 1
  for (; d + NN_VECTORS * LANES <= width; d += NN_VECTORS * LANES)
    multiply_nn_part<NN_VECTORS>(factors, row_step, column_step, rows + d, rows_step, count, to + d, to_step);
  if constexpr (NN_VECTORS > 2) {  // six sums, one vector's alone, would wait for one another
#pragma GCC unroll 1
    for (; d + 2 * LANES <= width; d += 2 * LANES)
      multiply_nn_part<2>(factors, row_step, column_step, rows + d, rows_step, count, to + d, to_step);
  }
  if (d < width) multiply_nn_part<1>(factors, row_step, column_step, rows + d, rows_step, count, to + d, to_step);
}

// panel[k][c] = rows[first + c][k], zero for rows outside of 0 .. count - 1. width: a multiple of LANES.
static void pack_panel(const float* rows, Index row_step, Index width, Index first, Index count,
                       float* __restrict panel) {
  for (Index c = 0; c < PANEL; c += LANES) {
    const float* from = rows + (first + c) * row_step;
    if (first + c + LANES <= count) {
      for (Index k = 0; k < width; k += LANES) transpose(from + k, row_step, panel + k * PANEL + c, PANEL);
    } else {
      for (Index k = 0; k < width; k += LANES) {
        Vector columns[LANES];
        for (Index n = 0; n < LANES; n++) columns[n] = first + c + n < count ? load(from + n * row_step + k) : Vector{};
        transpose(columns);
        for (Index n = 0; n < LANES; n++) store(panel + (k + n) * PANEL + c, columns[n]);
      }
    }
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

// The largest of row[0] .. row[count - 1], -inf of none.
INLINE float largest_of(const float* row, Index count) {
  Vector most = splat(-INFINITY);
  Index c = 0;
  for (; c + LANES <= count; c += LANES) most = larger(most, load(row + c));
  float rest = largest(most);
  for (; c < count; c++) rest = std::max(rest, row[c]);
  return rest;
}

// All panels of the rows 0 .. count - 1.
static void pack_panels(const float* rows, Index row_step, Index width, Index count, float* panels) {
  for (Index first = 0; first < count; first += PANEL)
    pack_panel(rows, row_step, width, first, count, panels + first * width);
}

// to[k] += factor * row[k].
INLINE void add_row(float* to, const float* row, float factor, Index width) {
  for (Index d = 0; d < width; d += LANES) store(to + d, load(to + d) + splat(factor) * load(row + d));
}

}  // namespace RELATTN_SET

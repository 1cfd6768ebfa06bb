// What depends on the offset alone: r . RK[d] + b[d] for a group of queries, as strips that the scores start from.
//
// A strip has a column for each offset. Pair (i, j) needs column j - i + const of row i, so the scores of a block are
// read from the strip at a row step that is one shorter than its own: the skew costs nothing.
#pragma once
#include <algorithm>

#include "call.h"
#include "products.h"
#include "workspace.h"

namespace RELATTN_SET {

// A table transposed into panels for multiply_nt: panel p holds rows p * PANEL ... of the table.
struct Panels {
  float* at = nullptr;
  Index head = 0, count = 0;  // floats between heads, panels of a head

  static Index size(const Band& band) {
    return band.rows ? band.heads * rounded_up(band.count, PANEL) * band.width : 0;
  }
  // Panel `unit` of all heads' panels; the last one's spare columns repeat the edge row where the table clamps.
  void pack(const Band& band, Index unit) const {
    const Index h = unit / count, p = unit % count;
    float* panel = at + h * head + p * band.width * PANEL;
    const float* rows = band.rows + h * band.head;
    pack_panel(rows, band.width, band.width, p * PANEL, band.count, panel);
    if (band.clamps)
      for (Index c = band.count - p * PANEL; c < PANEL; c++)
        for (Index k = 0; k < band.width; k++) panel[k * PANEL + c] = rows[(band.count - 1) * band.width + k];
  }
};

INLINE Panels panels_of(const Band& band, float*& workspace) {
  Panels panels;
  if (!band.rows) return panels;
  panels.count = rounded_up(band.count, PANEL) / PANEL;
  panels.head = panels.count * band.width * PANEL;
  panels.at = next_part(workspace, Panels::size(band));
  return panels;
}

// The bias of every offset of two runs, with room on both sides for reading whole vectors.
struct Biases {
  static constexpr Index ROOM = ROWS + 2 * PANEL;
  float* at = nullptr;  // of offset `first`
  Index head = 0, first = 0;

  static bool needed(const Call& call) { return call.sequence.bias.rows && !call.sequence.lists.given(); }
  static Index size(const Call& call) {
    return needed(call) ? call.sequence.bias.heads * (call.queries + call.keys + 2 * ROOM) : 0;
  }
  void expand(const Call& call, Index h) const {
    const Band& band = call.sequence.bias;
    const float* rows = band.rows + h * band.head;
    for (Index n = 0; n < head; n++) {
      const Index t = band.row_of(first + n);
      at[h * head + n] = t == NO_ROW ? 0.0f : rows[t];
    }
  }
};

INLINE Biases biases_of(const Call& call, float*& workspace) {
  Biases biases;
  if (!Biases::needed(call)) return biases;
  biases.head = call.queries + call.keys + 2 * Biases::ROOM;
  biases.first = call.origin - call.queries + 1 - Biases::ROOM;
  biases.at = next_part(workspace, Biases::size(call));
  return biases;
}

// Where the scores of a group of ROWS queries start from: pair (r, column) at `at + r * step + column`.
struct Start {
  const float* at;
  Index step;
};

// The products of ROWS rows x with a table's rows, a column for each offset.
struct Strip {
  static constexpr Index KEPT = 3 * PANEL;  // columns that the next block of keys takes over
  static Index step(Index block) { return block + ROWS + 2 * PANEL; }
  static Index size(Index block) { return ROWS * step(block); }
  static Index kept_size() { return ROWS * KEPT; }

  float* columns;  // [ROWS][step]
  Index row_step;
  const Band& band;
  const float* panels;
  const float* edges;  // the table's first row, from which the last one lies (count - 1) * width further
  const float* bias;   // of offset bias_first, null for none
  Index bias_first;

  // t of pair (row 0, column 0) is `corner`; columns from .. to - 1 are asked for. kept, next: what an earlier block
  // of the same rows left, and the panel after the last that it computed.
  Start fill(const float* x, Index corner, Index from, Index to, float* kept, Index& next) const {
    const Index first = floor_divided(corner + from - (ROWS - 1), PANEL), last = floor_divided(corner + to - 1, PANEL);
    Index p = first;
    if (next > first) {  // the block before ended where this one begins
      copy(kept, KEPT, columns, row_step, (next - first) * PANEL);
      p = next;
    }
    products(x, p, last + 1, columns + (p - first) * PANEL, row_step);
    next = last + 1;
    const Index again = floor_divided(corner + to - (ROWS - 1), PANEL);  // a next block begins at column `to`
    copy(columns + (again - first) * PANEL, row_step, kept, KEPT, (next - again) * PANEL);
    return {columns + corner - first * PANEL, row_step - 1};
  }

  // The products with the panels first .. end - 1 of the table, to[r * to_step + column]; beyond the table what holds
  // there.
  void products(const float* x, Index first, Index end, float* to, Index to_step) const {
    const Index from = std::min(std::max(first, Index(0)), end);
    const Index stop = std::max(from, std::min(end, rounded_up(band.count, PANEL) / PANEL));
    beyond(x, edges, first, from, to, to_step);
    by_width(band.width, [&](auto width) {
      for (Index p = from; p < stop; p++) inside<width.known>(x, p, to + (p - first) * PANEL, to_step);
    });
    beyond(x, edges + (band.count - 1) * band.width, stop, end, to + (stop - first) * PANEL, to_step);
  }

 private:
  template <int KNOWN>
  void inside(const float* x, Index p, float* to, Index to_step) const {
    Sums sums;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++) sums[r][v] = Vector{};
    }
    multiply_nt<KNOWN>(x, panels + p * band.width * PANEL, band.width, sums);
#pragma GCC unroll 8
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const Vector b = bias ? load(bias_of(p) + v * LANES) : Vector{};
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) store(to + r * to_step + v * LANES, sums[r][v] + b);
    }
  }

  // One number for each row: its product with the edge row, or nothing.
  void beyond(const float* x, const float* edge, Index first, Index end, float* to, Index to_step) const {
    if (first >= end) return;
    for (int r = 0; r < ROWS; r++) {
      Vector s = {};
      if (band.clamps)
        for (Index d = 0; d < band.width; d += LANES) s += load(x + r * band.width + d) * load(edge + d);
      const Vector product = splat(sum(s));
      for (Index c = 0; c < (end - first) * PANEL; c += LANES)
        store(to + r * to_step + c, bias ? product + load(bias_of(first) + c) : product);
    }
  }

  const float* bias_of(Index p) const { return bias + (p * PANEL + band.first - bias_first); }

  static void copy(const float* from, Index from_step, float* to, Index to_step, Index count) {
    for (int r = 0; r < ROWS; r++) std::memcpy(to + r * to_step, from + r * from_step, count * sizeof(float));
  }
};

}  // namespace RELATTN_SET

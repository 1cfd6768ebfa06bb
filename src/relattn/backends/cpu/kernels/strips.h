// Terms by offset: r . RK[d] + b[d] for a group of queries, as strips from which the scores start.
// A strip has one column per offset. Pair (i, j) needs column j - i + const of row i. So the scores of a block are read
// from the strip at a row step that is one shorter than its own. The skew costs nothing.
#pragma once
#include <algorithm>

#include "call.h"
#include "products.h"
#include "workspace.h"

namespace RELATTN_SET {

// A table transposed into panels for multiply_nt: panel p holds rows p * PANEL ... of the table.
struct Panels {
  float* at = nullptr;        // floats, or pairs in their place
  Index head = 0, count = 0;  // numbers between heads, panels of a head
  bool pairs = false;

  static Index row(const Band& band, bool pairs) {
    return pairs ? numbers_of<BFloat16x2>(band.width) : numbers_of<float>(band.width);
  }
  static Index size(const Band& band, bool pairs) {
    return band.rows ? band.heads * rounded_up(band.count, PANEL) * row(band, pairs) : 0;
  }
  // Panel `unit` of all heads' panels; the last one's spare columns repeat the edge row where the table clamps.
  void pack(const Band& band, Index unit) const {
    const Index h = unit / count, p = unit % count;
    const float *rows = band.rows + h * band.head, *last = rows + (band.count - 1) * band.width;
    const auto pack_as = [&](auto* panels) {
      pack_panel(rows, band.width, band.width, p * PANEL, band.count, band.clamps ? last : nullptr,
                 panels + h * head + p * row(band, pairs) * PANEL);
    };
    if (DOTS && pairs)
      pack_as(reinterpret_cast<BFloat16x2*>(at));
    else
      pack_as(at);
  }
};

INLINE Panels panels_of(const Band& band, bool pairs, float*& workspace) {
  Panels panels;
  if (!band.rows) return panels;
  panels.pairs = pairs;
  panels.count = rounded_up(band.count, PANEL) / PANEL;
  panels.head = panels.count * Panels::row(band, pairs) * PANEL;
  panels.at = next_part(workspace, Panels::size(band, pairs));
  return panels;
}

// A table's rows two by two, for multiply_nn.
struct RowPairs {
  BFloat16x2* at = nullptr;
  Index head = 0, count = 0;  // pairs between heads, units of a head
  static constexpr Index UNIT = 64;

  static Index size(const Band& band) { return band.heads * ((band.count + 1) / 2) * band.width; }
  void pack(const Band& band, Index unit) const {
    const Index h = unit / count, first = unit % count * UNIT;
    pair_rows(band.rows + h * band.head + first * band.width, band.width, band.width,
              std::min(UNIT, band.count - first), at + h * head + first / 2 * band.width);
  }
};

INLINE RowPairs row_pairs_of(const Band& band, bool pairs, float*& workspace) {
  RowPairs rows;
  if (!pairs) return rows;
  rows.head = (band.count + 1) / 2 * band.width;
  rows.count = (band.count + RowPairs::UNIT - 1) / RowPairs::UNIT;
  rows.at = reinterpret_cast<BFloat16x2*>(next_part(workspace, RowPairs::size(band)));
  return rows;
}

// The bias of every offset of contiguous positions, with space on both sides so that whole vectors can be read.
struct Biases {
  static constexpr Index ROOM = ROWS + 2 * PANEL;
  float* at = nullptr;  // of offset `first`
  Index head = 0, first = 0;

  static bool needed(const Call& call) { return call.sequence.bias.rows && !call.sequence.positions.are_explicit(); }
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

// The numbers from which the scores of a group of ROWS queries start: pair (r, column) at `at + r * step + column`.
struct Start {
  const float* at;
  Index step;
};

// ROWS rows for products with panels: as floats; also as pairs where the panels hold pairs. Pairs are without the
// scale; their products are multiplied with it. Only the products of the first `real` rows are read.
struct Operand {
  const float* floats;
  const BFloat16x2* pairs = nullptr;
  float scale = 1.0f;
  Index real = ROWS;

  Operand(const float* rows) : floats(rows) {}
  bool are_pairs() const { return DOTS && pairs; }
  Operand first(Index rows) const {
    Operand part = *this;
    part.real = rows;
    return part;
  }
  Operand(const float* rows, const BFloat16x2* as_pairs, double with)
      : floats(rows), pairs(as_pairs), scale(float(with)) {}
};

// The products of ROWS rows x with a table's rows, one column per offset.
struct Strip {
  static constexpr Index CARRIED = 3 * PANEL;  // columns that the next block of keys takes over
  static Index step(Index block) { return block + ROWS + 2 * PANEL; }
  static Index size(Index block) { return ROWS * step(block); }
  static Index carried_size() { return ROWS * CARRIED; }

  float* columns;  // [ROWS][step]
  Index row_step;
  const Band& band;
  const float* panels;
  const float* edges;  // the table's first row; the last one lies (count - 1) * width further
  const float* bias;   // of offset bias_first, null for none
  Index bias_first;

  // t of pair (row 0, column 0) is `corner`. Columns from .. to - 1 are needed. carried, next: the result of an earlier
  // block of the same rows, and the panel after the last one that it computed.
  Start fill(const Operand& x, Index corner, Index from, Index to, float* carried, Index& next) const {
    const Index first = floor_divided(corner + from - (ROWS - 1), PANEL), last = floor_divided(corner + to - 1, PANEL);
    Index p = first;
    if (next > first) {  // the block before ended where this one begins
      copy(carried, CARRIED, columns, row_step, (next - first) * PANEL);
      p = next;
    }
    products(x, p, last + 1, columns + (p - first) * PANEL, row_step);
    next = last + 1;
    const Index again = floor_divided(corner + to - (ROWS - 1), PANEL);  // a next block begins at column `to`
    copy(columns + (again - first) * PANEL, row_step, carried, CARRIED, (next - again) * PANEL);
    return {columns + corner - first * PANEL, row_step - 1};
  }

  // The products with the panels first .. end - 1 of the table, to[r * to_step + column]. Beyond the table they are the
  // products with the edge row, or zeros.
  void products(const Operand& x, Index first, Index end, float* to, Index to_step) const {
    const Index from = std::min(std::max(first, Index(0)), end);
    const Index stop = std::max(from, std::min(end, rounded_up(band.count, PANEL) / PANEL));
    beyond(x.floats, edges, first, from, to, to_step);
    if (x.are_pairs())
      inside(x.pairs, reinterpret_cast<const BFloat16x2*>(panels), x.scale, x.real, from, stop,
             to + (from - first) * PANEL, to_step);
    else
      inside(x.floats, panels, 1.0f, x.real, from, stop, to + (from - first) * PANEL, to_step);
    beyond(x.floats, edges + (band.count - 1) * band.width, stop, end, to + (stop - first) * PANEL, to_step);
  }

 private:
  // The panels from .. stop - 1.
  template <class Number>
  void inside(const Number* x, const Number* numbers, float scale, Index real, Index from, Index stop, float* to,
              Index to_step) const {
    const Index width = numbers_of<Number>(band.width);
    by_width(width, [&](auto known) {
      by_rows(real, [&](auto group) {
        for (Index p = from; p < stop; p++)
          panel<known.known, group.rows>(x, numbers + p * width * PANEL, width, scale, bias ? bias_of(p) : nullptr,
                                         to + (p - from) * PANEL, to_step);
      });
    });
  }

  template <int KNOWN, int R, class Number>
  static void panel(const Number* x, const Number* numbers, Index width, float scale, const float* biases, float* to,
                    Index to_step) {
    Sums<R> sums;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++) sums[r][v] = Vector{};
    }
    multiply_nt<KNOWN, R>(x, numbers, width, sums);
    const Vector factor = splat(scale);
#pragma GCC unroll 8
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const Vector b = biases ? load(biases + v * LANES) : Vector{};
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        store(to + r * to_step + v * LANES, std::is_same_v<Number, float> ? sums[r][v] + b : sums[r][v] * factor + b);
    }
  }

  // One number per row: its product with the edge row, or zero.
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

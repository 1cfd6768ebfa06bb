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

  Panels() = default;
  Panels(const Band& band, bool as_pairs, Workspace& workspace) : pairs(as_pairs) {
    if (!band.rows) return;
    count = rounded_up(band.count, PANEL) / PANEL;
    head = count * PANEL * numbers_of(band.width, pairs);
    at = workspace.next(band.heads * head);
  }
  // Panel `unit` of all heads' panels; the last one's spare columns repeat the edge row where the table clamps.
  void pack(const Band& band, Index unit) const {
    const Index h = unit / count, p = unit % count;
    const auto pack_as = [&](auto* panels) {
      pack_panel(band.at(h, 0), band.width, band.width, p * PANEL, band.count,
                 band.clamps ? band.at(h, band.count - 1) : nullptr,
                 panels + h * head + p * PANEL * numbers_of(band.width, pairs));
    };
    if (DOTS && pairs)
      pack_as(reinterpret_cast<BFloat16x2*>(at));
    else
      pack_as(at);
  }
};

// A table's rows two by two, for multiply_nn.
struct RowPairs {
  static constexpr Index UNIT = 64;
  BFloat16x2* at = nullptr;
  Index head = 0, count = 0;  // pairs between heads, units of a head

  RowPairs() = default;
  RowPairs(const Band& band, bool serves, Workspace& workspace) {
    if (!serves) return;
    head = (band.count + 1) / 2 * band.width;
    count = (band.count + UNIT - 1) / UNIT;
    at = workspace.next<BFloat16x2>(band.heads * head);
  }
  void pack(const Band& band, Index unit) const {
    const Index h = unit / count, first = unit % count * UNIT;
    pair_rows(band.at(h, first), band.width, band.width, std::min(UNIT, band.count - first),
              at + h * head + first / 2 * band.width);
  }
};

// One head's table: its rows as they are, and packed as panels or two by two.
struct Table {
  const Band* band;
  const float *rows, *panels;
  bool pairs;  // what the panels hold
  const BFloat16x2* row_pairs;

  Table() = default;
  Table(const Band& of, const Panels& packed, const RowPairs& two, Index h)
      : band(&of),
        rows(of.rows ? of.at(h, 0) : nullptr),
        panels(packed.at ? packed.at + (of.heads == 1 ? 0 : h) * packed.head : nullptr),
        pairs(packed.pairs),
        row_pairs(two.at ? two.at + (of.heads == 1 ? 0 : h) * two.head : nullptr) {}
};

// The bias of every offset of contiguous positions, with space on both sides so that whole vectors can be read.
struct Biases {
  static constexpr Index ROOM = ROWS + 2 * PANEL;
  float* at = nullptr;  // of offset `first`; null where there are none
  Index heads = 0, head = 0, first = 0;

  Biases() = default;
  Biases(const Call& call, Workspace& workspace) {
    if (!call.sequence.bias.rows || call.sequence.positions.are_explicit()) return;
    heads = call.sequence.bias.heads;
    head = call.queries + call.keys + 2 * ROOM;
    first = call.origin - call.queries + 1 - ROOM;
    at = workspace.next(heads * head);
  }
  const float* of(Index h) const { return at ? at + (heads == 1 ? 0 : h) * head : nullptr; }
  void expand(const Band& band, Index h) const {
    const float* rows = band.at(h, 0);
    for (Index n = 0; n < head; n++) {
      const Index t = band.row_of(first + n);
      at[h * head + n] = t == NO_ROW ? 0.0f : rows[t];
    }
  }
};

// The numbers from which the scores of a group of ROWS queries start: pair (r, column) at `at + r * step + column`.
struct Start {
  const float* at;
  Index step;
};

// ROWS rows for products with panels: as floats, and where panels may hold pairs also as pairs. Pairs are without the
// scale; their products are multiplied with it. Only the products of the first `real` rows are read.
struct Operand {
  const float* floats;
  const BFloat16x2* pairs = nullptr;
  float scale = 1.0f;
  Index real = ROWS;
};

// The products of ROWS rows x with a table's rows, one column per offset.
struct Strip {
  static constexpr Index CARRIED = 3 * PANEL;  // columns that the next block of keys takes over
  static Index step(Index block) { return block + ROWS + 2 * PANEL; }
  static Index size(Index block) { return ROWS * step(block); }

  float* columns;  // [ROWS][step]
  Index row_step;
  const Table& table;
  const float* bias = nullptr;  // of offset bias_first, null for none
  Index bias_first = 0;

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
    const Band& band = *table.band;
    const Index from = std::min(std::max(first, Index(0)), end);
    const Index stop = std::max(from, std::min(end, rounded_up(band.count, PANEL) / PANEL));
    beyond(x.floats, table.rows, first, from, to, to_step);
    if (DOTS && table.pairs)
      inside(x.pairs, reinterpret_cast<const BFloat16x2*>(table.panels), x.scale, x.real, from, stop,
             to + (from - first) * PANEL, to_step);
    else
      inside(x.floats, table.panels, 1.0f, x.real, from, stop, to + (from - first) * PANEL, to_step);
    beyond(x.floats, table.rows + (band.count - 1) * band.width, stop, end, to + (stop - first) * PANEL, to_step);
  }

 private:
  // The panels from .. stop - 1.
  template <class Number>
  void inside(const Number* x, const Number* numbers, float scale, Index real, Index from, Index stop, float* to,
              Index to_step) const {
    const Index width = numbers_of<Number>(table.band->width);
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
    const Band& band = *table.band;
    for (int r = 0; r < ROWS; r++) {
      Vector s = {};
      if (band.clamps)
        for (Index d = 0; d < band.width; d += LANES) s += load(x + r * band.width + d) * load(edge + d);
      const Vector product = splat(sum(s));
      for (Index c = 0; c < (end - first) * PANEL; c += LANES)
        store(to + r * to_step + c, bias ? product + load(bias_of(first) + c) : product);
    }
  }

  const float* bias_of(Index p) const { return bias + (p * PANEL + table.band->first - bias_first); }

  static void copy(const float* from, Index from_step, float* to, Index to_step, Index count) {
    for (int r = 0; r < ROWS; r++) std::memcpy(to + r * to_step, from + r * from_step, count * sizeof(float));
  }
};

}  // namespace RELATTN_SET

// The scores S of a group of ROWS queries and a block of keys, -inf where a pair is hidden.
#pragma once
#include <type_traits>

#include "dropout.h"
#include "masks.h"
#include "packed.h"
#include "visible.h"

namespace RELATTN_SET {

constexpr Index MARGIN = 32;  // zeros on both sides of a row of weights, where diagonals begin and end

// to[r] = factor * row i + r, zeros after `count` rows; [rounded up to ROWS][width].
static void copy_rows(const Rows& rows, Index b, Index h, Index i, Index count, Index width, float factor, float* to) {
  const Vector f = splat(factor);
  for (Index r = 0; r < count; r++) {
    const float* from = rows.of(b, h, i + r);
    for (Index d = 0; d < width; d += LANES) store(to + r * width + d, load(from + d) * f);
  }
  std::memset(to + count * width, 0, (rounded_up(count, ROWS) - count) * width * sizeof(float));
}

// `count` rows as pairs; zeros up to a whole group.
static void copy_pairs(const float* rows, Index row_step, Index count, Index width, BFloat16x2* to) {
  const Index row = numbers_of<BFloat16x2>(width);
  for (Index r = 0; r < count; r++)
    for (Index k = 0; k < row; k += LANES)
      store(to + r * row + k, (Pairs)numbers_at<BFloat16x2>(rows + r * row_step, width, k));
  std::memset(to + count * row, 0, (rounded_up(count, ROWS) - count) * row * sizeof(BFloat16x2));
}

// Rows of a block of queries as products take them: q or r times the scale, or dO; and as pairs without a factor.
struct QueryRows {
  float* floats = nullptr;
  BFloat16x2* pairs = nullptr;  // null where products take floats
  Index width = 0;
  float scale = 1.0f;

  QueryRows() = default;
  QueryRows(Index rows, Index of_width, bool as_pairs, double factor, Workspace& workspace)
      : width(of_width), scale(float(factor)) {
    floats = workspace.next(rows * width);
    pairs = workspace.next<BFloat16x2>(as_pairs ? rows * numbers_of<BFloat16x2>(width) : 0);
  }
  void load(const Rows& from, Index b, Index h, Index i0, Index count) const {
    copy_rows(from, b, h, i0, count, width, scale, floats);
    if (pairs) copy_pairs(from.of(b, h, i0), from.row, count, width, pairs);
  }
  // The row of the query a of the block.
  const float* row(Index a) const { return floats + a * width; }
  // The group that begins with it, of which `real` rows are read.
  Operand of(Index a, Index real = ROWS) const {
    return {row(a), pairs ? pairs + a * numbers_of<BFloat16x2>(width) : nullptr, scale, real};
  }
};

// The queries of a block, and the relative queries of every axis: those of the block where r is q.
struct BlockQueries {
  QueryRows query, relative[MOST_AXES];

  BlockQueries(const Call& call, Index rows, Workspace& workspace)
      : query(rows, call.width, call.takes_pairs(), call.scale, workspace) {
    for (Index n = 0; n < call.axes(); n++) {
      const Axis& axis = call.axis(n);
      const bool as_pairs = call.takes_pairs(axis, axis.relative_keys);
      const Index width = axis.relative_width;
      relative[n] = width ? QueryRows(rows, width, as_pairs, call.scale, workspace) : query;
    }
  }
  void load(const Head& head, Index i0, Index count) const {
    const Call& call = head.call;
    query.load(call.query, head.b, head.h, i0, count);
    for (Index n = 0; n < call.axes(); n++)
      if (call.axis(n).relative_width) relative[n].load(call.axis(n).relative_query, head.b, head.h, i0, count);
  }
};

// scale * sum_c RQ_c[d_c] . k_j for a block of keys and a block of queries. The number of key c and query a (counted
// from the first of each) lies at at[c * step + last - a], wherever the table's panels begin.
struct KeyStrips {
  Index step, last;
  float *at, *keys;  // keys: times the scale, one after the other, rounded up to whole panels and groups

  // For up to `queries` queries and `columns` keys; `at` is null where no axis has such a table.
  KeyStrips(const Call& call, Index queries, Index columns, Workspace& workspace)
      : step(rounded_up(queries, ROWS) + ROWS + 3 * PANEL), last(step - 2 * PANEL) {
    // Whole groups of keys are multiplied, and whole panels are read.
    const Index rows = call.has(&Axis::relative_queries) ? rounded_up(rounded_up(columns, PANEL), ROWS) : 0;
    at = workspace.next(rows * step);
    keys = workspace.next(rows * call.width);
  }
  void load_keys(const Head& head, Index j0, Index count) const {
    copy_rows(head.call.key, head.b, head.key_head, j0, count, head.call.width, float(head.call.scale), keys);
  }

  // The numbers of contiguous positions, for the keys j0 .. j0 + count - 1 and the queries of i0 .. i0 + queries - 1
  // that see them.
  void fill(const Head& head, Index i0, Index queries, Index j0, Index count) const {
    const Call& call = head.call;
    const Table& table = head.sequence().relative_queries;
    const Band& band = *table.band;
    const Strip products{nullptr, step, table};
    for (Index c = 0; c < count; c += ROWS) {
      const Index corner = call.origin + j0 + c - i0 - band.first;  // t of key c and query 0
      const Index from = call.first_query(j0 + c) - i0, to = call.end_query(j0 + c, ROWS) - i0;
      const Index first = floor_divided(corner - (std::min(to, queries) - 1), PANEL);
      const Index end = floor_divided(corner + ROWS - 1 - std::max(from, Index(0)), PANEL) + 1;
      // Row r holds the same offsets one column further left than row r - 1. So the column depends only on the query.
      products.products({keys + c * call.width}, first, end, at + c * step + first * PANEL - corner + last, step - 1);
    }
  }

  // The numbers from which a group's scores start: `start` plus these strips, transposed, in tile[r][column]. Rows
  // without a query start from any finite number.
  Start add_to(Start start, const Group& g, float* tile, Index tile_step) const {
    for (Index column = g.from; column < g.to; column += LANES) {
#pragma GCC unroll 2
      for (int r0 = 0; r0 < ROWS; r0 += LANES) {
        const float* first = at + column * step + last - g.a - r0 - (LANES - 1);  // lane n: row r0 + LANES - 1 - n
        Vector rows[LANES];
#pragma GCC unroll 16
        for (int c = 0; c < LANES; c++) rows[c] = load(first + c * step);
        transpose(rows);
#pragma GCC unroll 16
        for (int r = r0; r < std::min(ROWS, r0 + LANES); r++) {
          Vector sums = rows[r0 + LANES - 1 - r];
          if (start.at) sums += load(start.at + r * start.step + column);
          store(tile + r * tile_step + column, sums);
        }
      }
    }
    for (Index r = g.real; r < ROWS; r++)
      std::memset(tile + r * tile_step + g.from, 0, (g.to - g.from) * sizeof(float));
    return {tile, tile_step};
  }
};

// The keys that a group of queries sees by their offsets: from begin + r to end + r - 1 for row r, of `keys`.
struct OffsetLimits {
  Index begin, end, keys;

  static OffsetLimits of(const Call& call, Index i) {
    return {call.lowest == UNLIMITED ? UNLIMITED : call.lowest - call.origin + i,
            call.highest == -UNLIMITED ? -UNLIMITED : call.highest - call.origin + i + 1, call.keys};
  }
  bool whole_panel(Index j) const { return j + PANEL <= std::min(keys, end) && j >= begin + ROWS - 1; }

  // -inf for the keys that row r does not see, in the panel of the key j.
  template <int R>
  void hide(Index j, Sums<R>& sums) const {
#if defined(__clang__)  // clang keeps sums in memory if there is a loop over them; GCC does if this loop is unrolled
#pragma clang loop unroll(full)
#endif
    for (int r = 0; r < R; r++) {
      const Index first = std::max(begin == UNLIMITED ? 0 : begin + r - j, Index(0));
      const Index last = std::min(keys, end == -UNLIMITED ? end : end + r) - j;
      const Integers low = Integers{} + int32_t(std::min(first, Index(PANEL)));
      const Integers high = Integers{} + int32_t(std::max(std::min(last, Index(PANEL)), Index(0)));
#if defined(__clang__)
#pragma clang loop unroll(full)
#endif
      for (int v = 0; v < PANEL_VECTORS; v++) {
        const Integers n = counting() + v * LANES;
        sums[r][v] = ((n >= low) & (n < high)) ? sums[r][v] : splat(-INFINITY);
      }
    }
  }
};

// scores_of for a known width, or 0. The loop reads only arguments that come by value, because a store might change
// numbers in memory. The scores may be written over their start. scale: for pairs.
template <int KNOWN, int R, class Number>
static void scores_of_width(const Number* __restrict query, const Number* __restrict panels, Index width, float scale,
                            OffsetLimits limits, Start start, Index j0, Index from, Index to, float* scores, Index step,
                            Vector (&most)[ROWS]) {
  constexpr bool SCALED = std::is_same_v<Number, float>;  // as the queries are
  Vector largest_so_far[R];
  for (int r = 0; r < R; r++) largest_so_far[r] = splat(-INFINITY);
  for (Index column = from; column < to; column += PANEL) {
    Sums<R> sums;
    if (SCALED && start.at) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) sums[r][v] = load(start.at + r * start.step + column + v * LANES);
      }
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) sums[r][v] = Vector{};
      }
    }
    multiply_nt<KNOWN, R>(query, panels + column * width, width, sums);
    if constexpr (!SCALED) {
      const Vector factor = splat(scale);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++)
          sums[r][v] =
              sums[r][v] * factor + (start.at ? load(start.at + r * start.step + column + v * LANES) : Vector{});
      }
    }
    if (!limits.whole_panel(j0 + column)) limits.hide(j0 + column, sums);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++) {
        store(scores + r * step + column + v * LANES, sums[r][v]);
        largest_so_far[r] = larger(largest_so_far[r], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < R; r++) most[r] = largest_so_far[r];
}

// Writes the scores of a group into scores[r][column], in whole panels, and the largest score of each row into `most`.
// start: the numbers from which the scores start; start.at is null for zeros.
static void scores_of(const Head& head, const Operand& query, const Group& g, Start start, float* scores, Index step,
                      Vector (&most)[ROWS]) {
  const auto of_numbers = [&](auto* rows, auto* keys) {
    const Index width = numbers_of<std::decay_t<decltype(*rows)>>(head.call.width);
    by_width(width, [&](auto known) {
      by_rows(query.real, [&](auto group) {
        scores_of_width<known.known, group.rows>(rows, keys + (g.j0 - head.panels.first) * width, width, query.scale,
                                                 OffsetLimits::of(head.call, g.i), start, g.j0, g.from, g.to, scores,
                                                 step, most);
      });
    });
  };
  if (DOTS && query.pairs)
    of_numbers(query.pairs, reinterpret_cast<const BFloat16x2*>(head.panels.keys));
  else
    of_numbers(query.floats, head.panels.keys);
}

// The numbers from which the scores of a group of contiguous positions start: relative keys with the bias, or only the
// bias, or zeros (a null pointer), as where positions are explicit.
//
// x: the relative queries of the group. columns, carried, next: see Strip::fill.
INLINE Start scores_start(const Head& head, const Operand& x, const Group& g, Index step, float* columns,
                          float* carried, Index& next) {
  if (head.call.sequence.positions.are_explicit()) return {nullptr, 0};
  const Table& table = head.sequence().relative_keys;
  if (table.rows) {
    const Strip strip{columns, step, table, head.biases, head.bias_first};
    return strip.fill(x, g.offset - table.band->first, g.from, g.to, carried, next);
  }
  if (head.biases) return {head.biases + (g.offset - head.bias_first), -1};
  return {nullptr, 0};
}

// to[r][.] += sum_c factors[r][c] * T[t] for a group of contiguous positions. It is one product with the rows inside
// the table, read along the diagonals, and the sums beyond the table times the edge rows.
//
// factors: with NN_ROWS readable zeros before the first column and after the last. rounded: the same in bfloat16 where
// the table's rows are pairs.
static void add_band(const Table& table, const Group& g, const float* factors, const BFloat16* rounded, Index step,
                     float* to) {
  const Index corner = g.offset - table.band->first, from = g.begin, stop = g.stop, to_step = table.band->width;
  const Band& band = *table.band;
  const float* rows = table.rows;
  for (int r0 = 0; r0 < ROWS; r0 += NN_ROWS) {
    const Index t = corner - r0;  // of row r0 and column 0
    const Index first = std::max(Index(0), t + from - (NN_ROWS - 1)), end = std::min(band.count, t + stop);
    if (first >= end) continue;
    if (DOTS && table.row_pairs) {
      const Index even = first / 2 * 2;
      multiply_nn(rounded + r0 * step + even - t, step + 1, 2, table.row_pairs + even / 2 * band.width, band.width,
                  (end - even + 1) / 2, to + r0 * to_step, to_step, band.width);
    } else {
      multiply_nn(factors + r0 * step + first - t, step + 1, 1, rows + first * band.width, band.width, end - first,
                  to + r0 * to_step, to_step, band.width);
    }
  }
  if (!band.clamps) return;
  for (int r = 0; r < ROWS; r++) {
    const Index inside = std::min(std::max(r - corner, from), stop);                 // the first column with t >= 0
    const Index beyond = std::min(std::max(band.count + r - corner, inside), stop);  // ... with t >= count
    const float *row = factors + r * step, *last = rows + (band.count - 1) * band.width;
    if (inside > from) add_row(to + r * to_step, rows, total(row, from, inside), band.width);
    if (stop > beyond) add_row(to + r * to_step, last, total(row, beyond, stop), band.width);
  }
}

// rounded[r][c] = the bfloat16 nearest to factors[r][c], for the whole panels of a group and the columns of a table's
// diagonals on both sides.
static void round_rows(const float* factors, Index step, const Group& g, BFloat16* rounded) {
  for (Index r = 0; r < g.real; r++) {
    for (Index c = g.from; c < g.to; c += 2 * LANES)
      store_nearest(rounded + r * step + c, load(factors + r * step + c), load(factors + r * step + c + LANES));
    std::memset(rounded + r * step + g.from - NN_ROWS, 0, NN_ROWS * sizeof(BFloat16));
    std::memset(rounded + r * step + g.to, 0, NN_ROWS * sizeof(BFloat16));
  }
}

// Applies the cap, the key bias and masks to the scores of a group, pair by pair, and finds the largest score of each
// row. All columns from `stop` to the end of a panel are hidden. slopes: the place for the cap's derivatives, rows
// `step` apart, or null.
static void apply_masks(const Head& head, const Group& g, float* scores, Index step, float* slopes,
                        Vector (&most)[ROWS]) {
  for (Index r = 0; r < g.real; r++) {
    float* row = scores + r * step;
    cap_and_bias(head.call, head.b, head.h, g.i + r, g.j0 + g.from, g.stop - g.from, row + g.from,
                 slopes ? slopes + r * step + g.from : nullptr);
    mask_scores(head.call, head.b, head.h, g.i + r, g.j0 + g.from, g.j0 + g.stop, row + g.from);
    Vector m = splat(-INFINITY);
    for (Index c = g.from; c < rounded_up(g.stop, LANES); c += LANES) m = larger(m, load(row + c));
    most[r] = m;
  }
}

}  // namespace RELATTN_SET

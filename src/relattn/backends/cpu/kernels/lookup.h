// The row of a table that each pair looks up where positions are explicit. There are two ways between rows and pairs:
// products with rows are spread over pairs, and the numbers of pairs are collected by row.
// A group is a few rows and some columns of pairs: queries and keys, or keys and queries. The rows of the table that
// its pairs look up are multiplied as a strip. A pair reads its column of the strip: by a gather, or by a copy where
// the positions of keys go up by one. Pairs may spread so far over the table that no pair would read most of the strip.
// Then each pair's own row is multiplied instead.
// Both ways round in their own order, and the numbers of a group decide between them. So where a backward pass follows,
// both passes have the same blocks: it finds the weights of the forward pass only from the same scores.
#pragma once
#include "elements.h"
#include "packed.h"

namespace RELATTN_SET {

// The rows first .. end - 1 of a table; none where first >= end.
struct Covered {
  Index first, end;
  Index count() const { return end - first; }
};

// index[r * step + c] = the row of the offset SIGN * (columns[c] - rows[r]), or NO_ROW. Returns the rows that any pair
// looks up. near, and every row of index, hold `count` numbers rounded up to whole vectors; all of them are written.
// Arithmetic leaves int64 once per column. Rows so close to one another that 32 bits hold their distance share the
// columns' distances from the first row. These are cut where they lie beyond the table for every row.
template <int SIGN>
static Covered look_up(const Band& band, const Index* rows, Index height, const Index* columns, Index count,
                       int32_t* __restrict near, int32_t* __restrict index, Index step) {
  if (count <= 0) return {0, 0};
  constexpr Index HALF = 1 + INT32_MAX / 2;
  const auto [low, high] = std::minmax_element(rows, rows + height);
  const bool apart = uint64_t(*high) - uint64_t(*low) >= uint64_t(HALF) || band.count > HALF;
  const int32_t last = int32_t(band.count - 1);
  const Integers none = Integers{} + NO_ROW;
  Integers first = Integers{} + (last + 1), end = none;
  for (Index r = 0; r < height; r++) {
    const Index base = apart ? rows[r] : (SIGN > 0 ? *low : *high);
    if (r == 0 || apart) {
      for (Index c = 0; c < count; c++) {
        const Index d = SIGN > 0 ? wrapped_difference(columns[c], base) : wrapped_difference(base, columns[c]);
        near[c] = int32_t(std::min(std::max(wrapped_difference(d, band.first), -HALF), Index(INT32_MAX)));
      }
      std::fill(near + count, near + rounded_up(count, LANES), near[count - 1]);
    }
    const Integers away = Integers{} + int32_t(SIGN > 0 ? rows[r] - base : base - rows[r]);
    for (Index c = 0; c < count; c += LANES) {
      const Integers t = load(near + c) - away, positive = t > 0 ? t : Integers{};
      const Integers inside = positive < last ? positive : Integers{} + last;
      const Integers row = band.clamps ? inside : (t == inside ? inside : none), smallest = row == none ? first : row;
      store(index + r * step + c, row);
      first = smallest < first ? smallest : first;
      end = row > end ? row : end;
    }
  }
  Covered covered = {last + 1, 0};
  for (int n = 0; n < LANES; n++)
    covered = {std::min(covered.first, Index(first[n])), std::max(covered.end, Index(end[n]) + 1)};
  return covered;
}

// The columns before .. after - 1 of a row of pairs look up the rows `row`, row + 1, ... of a table. The columns on
// both sides lie beyond the table.
struct Inside {
  Index before, after, row;
};

// The most columns of a strip for each column of pairs. A pair's own product costs about as much as so many products
// of a strip.
constexpr Index SPREAD = 4;

// Memory that the lookups of one thread share. most: the columns of a group.
struct LookupScratch {
  Index step = 0, strip_step = 0;
  float* strip = nullptr;  // [ROWS][strip_step]: LANES numbers, the first for pairs without a row, and rows of a table
  int32_t *index = nullptr, *near = nullptr;  // [ROWS][step], [step]
  float* row = nullptr;                       // [step]

  LookupScratch() = default;
  LookupScratch(Index most, Workspace& workspace)
      : step(rounded_up(most, PANEL)), strip_step(LANES + SPREAD * step + 2 * PANEL) {
    strip = workspace.next(ROWS * strip_step);
    index = workspace.next<int32_t>(ROWS * step);
    near = workspace.next<int32_t>(step);
    row = workspace.next(step);
  }
};

// One table and a group of ROWS rows of pairs: queries and up to `most` keys, or keys and up to `most` queries.
class Lookup : LookupScratch {
 public:
  Lookup(const Table& of, const LookupScratch& scratch) : LookupScratch(scratch), table(of), band(*of.band) {}

  // The pairs of the queries at `rows` (`height` of them; the last one stands for the rest) and the keys at `columns`.
  void of_queries(const Index* rows, Index height, const Index* columns, Index columns_count) {
    count = columns_count;
    const Positions places(rows, height);
    in_a_row = count > 0;
    for (Index c = 1; c < count; c++) in_a_row &= columns[c] == wrapped_sum(columns[0], c);
    if (in_a_row) {
      covered = {band.count, 0};
      for (Index r = 0; r < ROWS; r++)
        take(r, wrapped_difference(wrapped_difference(columns[0], places.at[r]), band.first));
      base = covered.first / PANEL * PANEL;
      if (!far()) return;
      in_a_row = false;
    }
    each<1>(places, columns);
  }
  // The pairs of the keys at `rows` and the queries at `columns`.
  void of_keys(const Index* rows, Index height, const Index* columns, Index columns_count) {
    count = columns_count;
    in_a_row = false;
    each<-1>(Positions(rows, height), columns);
  }

  // to[r * to_step + c] += x_r . T[row of (r, c)].
  void spread(const float* x, float* to, Index to_step) const {
    if (far()) {
      for (Index r = 0; r < ROWS; r++) dots(x + r * band.width, index + r * step, to + r * to_step);
      return;
    }
    if (covered.count() > 0)
      Strip{nullptr, 0, table}.products({x}, base / PANEL, (covered.end + PANEL - 1) / PANEL, strip + LANES,
                                        strip_step);
    for (Index r = 0; r < ROWS; r++) {
      const float* products = strip + r * strip_step;
      float* pairs = to + r * to_step;
      if (in_a_row) {
        lay(inside[r], products + LANES - base, pairs);
      } else {
        strip[r * strip_step] = 0.0f;
        pick_out(products, index + r * step, pairs);
      }
    }
  }

  // to[r * to_step + c] += b[row of (r, c)].
  void spread_bias(float* to, Index to_step) const {
    for (Index r = 0; r < ROWS; r++) {
      float* pairs = to + r * to_step;
      if (in_a_row) {
        lay(inside[r], table.rows, pairs);
        continue;
      }
      for (Index c = 0; c < count; c++) {
        const Index t = row_of(r, c);
        if (t != NO_ROW) pairs[c] += table.rows[t];
      }
    }
  }

  // Takes in the numbers weights[r * weights_step + c] of the pairs, for the two sums below.
  void collect(const float* weights, Index weights_step) {
    collected = weights, collected_step = weights_step;
    if (far()) return;
    const Index first = LANES + covered.first - base, width = rounded_up(std::max(covered.count(), Index(0)), NN_ROWS);
    for (Index r = 0; r < ROWS; r++) {
      float* sums = strip + r * strip_step;
      std::memset(sums + first, 0, width * sizeof(float));
      if (in_a_row)
        pick(inside[r], weights + r * weights_step, sums + LANES - base);
      else
        scatter(weights + r * weights_step, index + r * step, sums);
    }
  }

  // to[r * to_step] += sum_c weight[r][c] * T[row of (r, c)], for `height` rows rounded up to NN_ROWS.
  void add_rows_to(Index height, float* to, Index to_step) const {
    const Index width = band.width;
    const float* rows = table.rows;
    if (far()) {
      for (Index r = 0; r < height; r++) {
        const int32_t* at = index + r * step;
        add_each(weights_of(r), [=](Index c) { return rows + at[c] * width; }, width, count, to + r * to_step);
      }
      return;
    }
    for (Index r = 0; r < height; r += NN_ROWS)
      multiply_nn(first_sum() + r * strip_step, strip_step, 1, rows + covered.first * width, width, covered.count(),
                  to + r * to_step, to_step, width);
  }

  // sums[t] += sum of weight[r][c] * x_r over the pairs whose row is t. sums: with NN_ROWS rows after the last.
  void add_gradient(const float* x, Index x_step, Index height, float* sums) const {
    const Index width = band.width;
    if (far()) {
      for (Index r = 0; r < height; r++) {
        const float* weights = weights_of(r);
        for (Index c = 0; c < count; c++)
          if (weights[c] != 0.0f) add_row(sums + index[r * step + c] * width, x + r * x_step, weights[c], width);
      }
      return;
    }
    for (Index t = 0; t < covered.count(); t += NN_ROWS)
      multiply_nn(first_sum() + t, 1, strip_step, x, x_step, height, sums + (covered.first + t) * width, width, width);
  }

  // sums[t] += sum of weight[r][c] over the pairs whose row is t.
  void add_bias_gradient(const float* weights, Index weights_step, Index height, float* sums) const {
    for (Index r = 0; r < height; r++) {
      const float* from = weights + r * weights_step;
      if (in_a_row) {
        pick(inside[r], from, sums);
        continue;
      }
      for (Index c = 0; c < count; c++) {
        const Index t = row_of(r, c);
        if (t != NO_ROW) sums[t] += from[c];
      }
    }
  }

 private:
  // The positions of ROWS rows.
  struct Positions {
    Index at[ROWS];
    Positions(const Index* rows, Index height) {
      for (Index r = 0; r < ROWS; r++) at[r] = rows[std::min(r, height - 1)];
    }
  };

  bool far() const { return covered.count() > SPREAD * rounded_up(count, PANEL); }
  const float* first_sum() const { return strip + LANES + covered.first - base; }
  // For a group whose positions do not go up by one.
  Index row_of(Index r, Index c) const {
    const Index t = index[r * step + c];
    if (far()) return t;
    return t == 0 ? NO_ROW : t - LANES + base;
  }

  // Every pair's row. With a strip: its column of the strip, and the first column for a pair without a row.
  template <int SIGN>
  void each(const Positions& rows, const Index* columns) {
    covered = look_up<SIGN>(band, rows.at, ROWS, columns, count, near, index, step);
    base = covered.first / PANEL * PANEL;
    if (far()) return;
    const Integers none = Integers{} + NO_ROW, to_column = Integers{} + int32_t(LANES - base);
    for (Index r = 0; r < ROWS; r++)
      for (Index c = 0; c < count; c += LANES) {
        const Integers t = load(index + r * step + c);
        store(index + r * step + c, t == none ? Integers{} : t + to_column);
      }
  }

  // Row r for keys whose positions go up by one. The first key looks up row t, which may lie before or beyond the
  // table.
  void take(Index r, Index t) {
    const Index before = t >= 0 ? 0 : (t <= -count ? count : -t);
    const Index after = before == count ? count : (t >= band.count ? before : std::min(count, band.count - t));
    inside[r] = {before, after, std::min(std::max(t, Index(0)), band.count - 1)};
    if (before < after) cover(inside[r].row, inside[r].row + after - before);
    if (band.clamps && before > 0) cover(0, 1);
    if (band.clamps && after < count) cover(band.count - 1, band.count);
  }
  void cover(Index first, Index end) { covered = {std::min(covered.first, first), std::max(covered.end, end)}; }

  // to[c] += from[row of column c].
  void lay(const Inside& in, const float* __restrict from, float* __restrict to) const {
    const float oldest = band.clamps && in.before > 0 ? from[0] : 0.0f;
    const float newest = band.clamps && in.after < count ? from[band.count - 1] : 0.0f;
    for (Index c = 0; c < in.before; c++) to[c] += oldest;
    for (Index c = in.before; c < in.after; c++) to[c] += from[in.row + c - in.before];
    for (Index c = in.after; c < count; c++) to[c] += newest;
  }

  // sums[row of column c] += weights[c].
  void pick(const Inside& in, const float* __restrict weights, float* __restrict sums) const {
    float* to = sums + in.row;
    for (Index c = in.before; c < in.after; c++) to[c - in.before] += weights[c];
    if (!band.clamps) return;
    if (in.before > 0) sums[0] += total(weights, 0, in.before);
    if (in.after < count) sums[band.count - 1] += total(weights, in.after, count);
  }

  // sums[at[c]] += weights[c]. Neighbours with the same place, as beyond a clipped table, are added up first.
  void scatter(const float* weights, const int32_t* at, float* sums) const {
    Index c = 0;
    for (; c + LANES <= count; c += LANES) {
      if (at[c] == at[c + LANES - 1] && all_equal(load(at + c))) {
        sums[at[c]] += sum(load(weights + c));
      } else {
        for (Index n = c; n < c + LANES; n++) sums[at[n]] += weights[n];
      }
    }
    for (; c < count; c++) sums[at[c]] += weights[c];
  }

  // to[c] += products[at[c]].
  void pick_out(const float* __restrict products, const int32_t* __restrict at, float* __restrict to) const {
    for (Index c = 0; c < count; c++) to[c] += products[at[c]];
  }

  // to[c] += x . row at[c].
  void dots(const float* x, const int32_t* at, float* to) const {
    const Index width = band.width;
    const float* rows = table.rows;
    dot_each(x, [=](Index c) { return rows + std::max(at[c], 0) * width; }, width, count, row);
    for (Index c = 0; c < count; c++) to[c] += at[c] == NO_ROW ? 0.0f : row[c];
  }

  // The collected numbers, 0 where a pair has no row; for pairs that spread too far for a strip.
  const float* weights_of(Index r) const {
    const float* weights = collected + r * collected_step;
    if (band.clamps) return weights;
    for (Index c = 0; c < count; c++) row[c] = index[r * step + c] == NO_ROW ? 0.0f : weights[c];
    return row;
  }

  const Table& table;
  const Band& band;
  Inside inside[ROWS];
  bool in_a_row = false;  // keys go up by one: `inside` holds in place of `index`
  Index count = 0, base = 0;
  Covered covered = {0, 0};
  const float* collected = nullptr;
  Index collected_step = 0;
};

}  // namespace RELATTN_SET

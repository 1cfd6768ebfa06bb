// Which row of a table each pair looks up where positions are listed, and the two ways between rows and pairs: products
// with rows spread over pairs, and the numbers of pairs collected by row.
//
// A group is a few rows and some columns of pairs: queries and keys, or keys and queries. The rows of the table that
// its pairs look up are multiplied as a strip, and a pair reads its column of it: a gather. Where the pairs spread so
// far over the table that most of the strip would be read by none, each pair's own row is multiplied.
#pragma once
#include "held.h"
#include "strips.h"

namespace RELATTN_SET {

// The rows first .. end - 1 of a table; none where first >= end.
struct Covered {
  Index first, end;
  Index count() const { return end - first; }
};

constexpr int32_t NO_ROW = -1;  // of a pair beyond a table that holds nothing there

// index[r * step + c] = the row of the offset SIGN * (columns[c] - rows[r]), or NO_ROW. The answer: the rows that any
// pair looks up. near: room for `count` numbers.
//
// int64 is left once per column: rows so close to one another that 32 bits hold their distance share the columns'
// distances from the first of them, cut where they lie beyond the table for every row.
template <int SIGN>
static Covered look_up(const Band& band, const Index* rows, Index height, const Index* columns, Index count,
                       int32_t* __restrict near, int32_t* __restrict index, Index step) {
  constexpr Index HALF = Index(1) << 30;
  const auto [least, most] = std::minmax_element(rows, rows + height);
  const bool apart = uint64_t(*most) - uint64_t(*least) >= uint64_t(HALF) || band.count > HALF;
  const int32_t last = int32_t(band.count - 1);
  const bool clamps = band.clamps;
  int32_t first = last + 1, end = NO_ROW;
  for (Index r = 0; r < height; r++) {
    const Index base = apart ? rows[r] : (SIGN > 0 ? *least : *most);
    if (r == 0 || apart)
      for (Index c = 0; c < count; c++) {
        const Index d = SIGN > 0 ? wrapped_difference(columns[c], base) : wrapped_difference(base, columns[c]);
        near[c] = int32_t(std::min(std::max(wrapped_difference(d, band.first), -HALF), Index(INT32_MAX)));
      }
    const int32_t away = int32_t(SIGN > 0 ? rows[r] - base : base - rows[r]);
    int32_t* __restrict at = index + r * step;
    for (Index c = 0; c < count; c++) {
      const int32_t t = near[c] - away, inside = std::min(std::max(t, 0), last);
      const bool has = clamps || t == inside;
      at[c] = has ? inside : NO_ROW;
      first = std::min(first, has ? inside : last + 1);
      end = std::max(end, at[c]);
    }
  }
  return {first, Index(end) + 1};
}

// One table over groups of ROWS rows and up to `most` columns, one group after the other.
class Lookup {
 public:
  static Index size(Index most) { return ROWS * (step_of(most) + strip_step_of(most)) + 2 * step_of(most); }

  // scratch: size(most) floats, which the lookups of one thread may share.
  Lookup(const Band& table, Index most, float* scratch)
      : band(table), step(step_of(most)), strip_step(strip_step_of(most)), strip(scratch) {
    index = reinterpret_cast<int32_t*>(strip + ROWS * strip_step);
    near = index + ROWS * step;
    row = reinterpret_cast<float*>(near + step);
  }

  // The group of the queries at `rows` (`height` of them, the last one standing for the rest) and the keys at
  // `columns`.
  void of_queries(const Index* rows, Index height, const Index* columns, Index columns_count) {
    of<1>(rows, height, columns, columns_count);
  }
  // The group of the keys at `rows` and the queries at `columns`.
  void of_keys(const Index* rows, Index height, const Index* columns, Index columns_count) {
    of<-1>(rows, height, columns, columns_count);
  }

  // to[r * to_step + c] = x_r . T[row of (r, c)]. panels, rows: the table's.
  void spread(const float* x, const float* panels, const float* rows, float* to, Index to_step) const {
    if (far()) {
      for (Index r = 0; r < ROWS; r++) dots(x + r * band.width, rows, of(r), to + r * to_step);
      return;
    }
    const Index first = covered.first / PANEL, end = (covered.end + PANEL - 1) / PANEL;
    if (covered.count() > 0)
      Strip{nullptr, 0, band, panels, rows, nullptr, 0}.products(x, first, end, strip, strip_step);
    for (Index r = 0; r < ROWS; r++) gather(strip + r * strip_step, first * PANEL, of(r), to + r * to_step);
  }

  // to[r * to_step + c] (+)= b[row of (r, c)].
  void spread_bias(const float* rows, bool adds, float* to, Index to_step) const {
    for (Index r = 0; r < ROWS; r++) {
      const int32_t* at = of(r);
      float* sums = to + r * to_step;
      for (Index c = 0; c < count; c++) {
        const float b = at[c] == NO_ROW ? 0.0f : rows[at[c]];
        sums[c] = adds ? sums[c] + b : b;
      }
    }
  }

  // Takes in the numbers weights[r * weights_step + c] of the pairs, for the two sums below.
  void collect(const float* weights, Index weights_step) {
    given = weights, given_step = weights_step;
    if (far()) return;
    const Index width = rounded_up(std::max(covered.count(), Index(0)), NN_ROWS);
    for (Index r = 0; r < ROWS; r++) {
      float* sums = strip + r * strip_step - covered.first;
      std::memset(strip + r * strip_step, 0, width * sizeof(float));
      const int32_t* at = of(r);
      const float* from = weights + r * weights_step;
      if (band.clamps) {
        for (Index c = 0; c < count; c++) sums[at[c]] += from[c];
      } else {
        for (Index c = 0; c < count; c++)
          if (at[c] != NO_ROW) sums[at[c]] += from[c];
      }
    }
  }

  // to[r * to_step] += sum_c weight[r][c] * T[row of (r, c)], for `height` rows rounded up to NN_ROWS.
  void add_rows_to(const float* rows, Index height, float* to, Index to_step) const {
    const Index width = band.width;
    if (far()) {
      for (Index r = 0; r < height; r++) {
        const int32_t* at = of(r);
        add_each(weights_of(r), [=](Index c) { return rows + at[c] * width; }, width, count, to + r * to_step);
      }
      return;
    }
    for (Index r = 0; r < height; r += NN_ROWS)
      multiply_nn(strip + r * strip_step, strip_step, 1, rows + covered.first * width, width, covered.count(),
                  to + r * to_step, to_step, width);
  }

  // sums[t] += sum of weight[r][c] * x_r over the pairs whose row is t. sums: with NN_ROWS rows after the last.
  void add_gradient(const float* x, Index x_step, Index height, float* sums) const {
    const Index width = band.width;
    if (far()) {
      for (Index r = 0; r < height; r++) {
        const float* weights = weights_of(r);
        for (Index c = 0; c < count; c++)
          if (weights[c] != 0.0f) add_row(sums + of(r)[c] * width, x + r * x_step, weights[c], width);
      }
      return;
    }
    for (Index t = 0; t < covered.count(); t += NN_ROWS)
      multiply_nn(strip + t, 1, strip_step, x, x_step, height, sums + (covered.first + t) * width, width, width);
  }

  // sums[t] += sum of weight[r][c] over the pairs whose row is t.
  void add_bias_gradient(const float* weights, Index weights_step, Index height, float* sums) const {
    for (Index r = 0; r < height; r++) {
      const int32_t* at = of(r);
      for (Index c = 0; c < count; c++)
        if (at[c] != NO_ROW) sums[at[c]] += weights[r * weights_step + c];
    }
  }

 private:
  // A strip may hold so many columns for each column of pairs; a pair's own product costs about as many of a strip's.
  static constexpr Index SPREAD = 4;
  static Index step_of(Index most) { return rounded_up(most, PANEL); }
  static Index strip_step_of(Index most) { return SPREAD * step_of(most) + 2 * PANEL; }

  bool far() const { return covered.count() > SPREAD * rounded_up(count, PANEL); }
  const int32_t* of(Index r) const { return index + r * step; }

  template <int SIGN>
  void of(const Index* rows, Index height, const Index* columns, Index columns_count) {
    Index all[ROWS];
    for (Index r = 0; r < ROWS; r++) all[r] = rows[std::min(r, height - 1)];
    count = columns_count;
    covered = look_up<SIGN>(band, all, ROWS, columns, count, near, index, step);
  }

  void gather(const float* from, Index first, const int32_t* at, float* to) const {
    const int32_t base = int32_t(first);
    if (band.clamps) {
      for (Index c = 0; c < count; c++) to[c] = from[at[c] - base];
    } else {
      for (Index c = 0; c < count; c++) to[c] = at[c] == NO_ROW ? 0.0f : from[at[c] - base];
    }
  }

  // to[c] = x . row at[c].
  void dots(const float* x, const float* rows, const int32_t* at, float* to) const {
    const Index width = band.width;
    dot_each(x, [=](Index c) { return rows + std::max(at[c], 0) * width; }, width, count, to);
    for (Index c = 0; c < count && !band.clamps; c++) to[c] = at[c] == NO_ROW ? 0.0f : to[c];
  }

  // Those that were collected, 0 where a pair has no row.
  const float* weights_of(Index r) const {
    const float* weights = given + r * given_step;
    if (band.clamps) return weights;
    for (Index c = 0; c < count; c++) row[c] = of(r)[c] == NO_ROW ? 0.0f : weights[c];
    return row;
  }

  const Band& band;
  const Index step, strip_step;
  float* strip;    // [ROWS][strip_step]
  int32_t* index;  // [ROWS][step]
  int32_t* near;
  float* row;
  Index count = 0;
  Covered covered = {0, 0};
  const float* given = nullptr;
  Index given_step = 0;
};

}  // namespace RELATTN_SET

// A tile with explicit positions. Every pair has its own d = key position - query position, so the pairs of a diagonal
// need not share a row of a table. Where a tile crosses a limit, the limit is checked pair by pair.
#pragma once
#include "lookup.h"
#include "scores.h"
#include "visible.h"

namespace RELATTN_SET {

// What an axis of explicit positions adds to a group of queries and a block of keys.
class ExplicitAxis {
 public:
  // most: the keys or queries that a group takes at a time.
  static Index pairs_step(Index most) { return rounded_up(most, PANEL); }
  static Index size(Index most) { return room_for(ROWS * pairs_step(most), Lookup::size(most)); }

  // axis: the number of the axis. scratch: size() floats, which the axes of one thread may share.
  ExplicitAxis(const Head& of, Index number, Index most_columns, float* scratch)
      : head(of),
        axis(of.call.axis(number)),
        tables(of.axes[number]),
        queries(axis.positions.queries(of.b)),
        keys(axis.positions.keys(of.b)),
        most(most_columns),
        step(pairs_step(most_columns)) {
    pairs = next_part(scratch, ROWS * step);
    lookups = next_part(scratch, Lookup::size(most));
  }

  // to[r][c] = x_r . T[d], or += if it adds. table: the axis' relative keys or values. to: [ROWS][pairs_step].
  template <bool ADDS>
  void spread(const Table& table, const float* x, Index i, Index real, Index j0, const Columns& columns,
              float* to) const {
    of_queries(table, i, real, j0, columns).template spread<ADDS>(x, table, to + columns.from, step);
  }

  // to[r][c] = b[d], or += if it adds.
  template <bool ADDS>
  void spread_bias(Index i, Index real, Index j0, const Columns& columns, float* to) const {
    of_queries(tables.bias, i, real, j0, columns).template spread_bias<ADDS>(tables.bias.rows, to + columns.from, step);
  }

  // RQ[d] . k_j, for `count` queries and `columns` keys.
  template <bool ADDS>
  void spread_by_keys(const KeyStrips& strips, Index i0, Index count, Index j0, Index columns) const {
    const Table& table = tables.relative_queries;
    for (Index c = 0; c < columns; c += ROWS) {
      const Index real = std::min(Index(ROWS), columns - c);
      of_keys(j0 + c, real, i0, count).template spread<false>(strips.keys + c * table.band->width, table, pairs, step);
      for (Index r = 0; r < real; r++)
        for (Index a = 0; a < count; a++) {
          float& to = strips.at[(c + r) * strips.step + strips.last - a];
          to = ADDS ? to + pairs[r * step + a] : pairs[r * step + a];
        }
    }
  }

  // to_r += sum_c weight[r][c] * RV[d].
  void add_values(const float* weights, Index weights_step, Index i, Index real, Index j0, const Columns& columns,
                  float* to) const {
    const Table& table = tables.relative_values;
    Lookup lookup = of_queries(table, i, real, j0, columns);
    lookup.collect(weights + columns.from, weights_step);
    lookup.add_rows_to(table.rows, ROWS, to, table.band->width);
  }

  // to_r += sum_c dS[r][c] RK[d] and dRK[d] += dS[r][c] x_r, each where there is a place for it.
  void add_key_gradients(const float* score_gradients, Index gradients_step, const float* x, Index i, Index real,
                         Index j0, const Columns& columns, float* to, float* sums) const {
    const Table& table = tables.relative_keys;
    Lookup lookup = of_queries(table, i, real, j0, columns);
    lookup.collect(score_gradients + columns.from, gradients_step);
    if (to) lookup.add_rows_to(table.rows, ROWS, to, table.band->width);
    if (sums) lookup.add_gradient(x, table.band->width, ROWS, sums);
  }

  // dRV[d] += P[r][c] dO_r.
  void add_value_gradient(const float* weights, Index weights_step, const float* x, Index i, Index real, Index j0,
                          const Columns& columns, float* sums) const {
    Lookup lookup = of_queries(tables.relative_values, i, real, j0, columns);
    lookup.collect(weights + columns.from, weights_step);
    lookup.add_gradient(x, tables.relative_values.band->width, ROWS, sums);
  }

  // db[d] += dS[r][c].
  void add_bias_gradient(const float* score_gradients, Index gradients_step, Index i, Index real, Index j0,
                         const Columns& columns, float* sums) const {
    of_queries(tables.bias, i, real, j0, columns)
        .add_bias_gradient(score_gradients + columns.from, gradients_step, real, sums);
  }

  // to_j += sum_i dS_ij RQ[d] and dRQ[d] += dS_ij k_j, for a tile of `count` queries and `columns` keys. The scale
  // comes last.
  void add_query_gradients(const float* score_gradients, Index gradients_step, Index i0, Index count, Index j0,
                           Index columns, float* to, float* sums) const {
    const Call& call = head.call;
    for (Index c = 0; c < columns; c += ROWS) {
      const Index real = std::min(Index(ROWS), columns - c);
      for (Index r = 0; r < ROWS; r++)
        for (Index a = 0; a < count; a++)
          pairs[r * step + a] = r < real ? score_gradients[a * gradients_step + c + r] : 0.0f;
      Lookup lookup = of_keys(j0 + c, real, i0, count);
      lookup.collect(pairs, step);
      lookup.add_rows_to(tables.relative_queries.rows, real, to + c * call.width, call.width);
      if (sums) lookup.add_gradient(call.key.of(head.b, head.key_head, j0 + c), call.key.row, real, sums);
    }
  }

 private:
  Lookup of_queries(const Table& table, Index i, Index real, Index j0, const Columns& columns) const {
    Lookup lookup(*table.band, most, lookups);
    lookup.of_queries(queries + i, real, keys + j0 + columns.from, columns.stop - columns.from);
    return lookup;
  }
  Lookup of_keys(Index j, Index real, Index i0, Index count) const {
    Lookup lookup(*tables.relative_queries.band, most, lookups);
    lookup.of_keys(keys + j, real, queries + i0, count);
    return lookup;
  }

  const Head& head;
  const Axis& axis;
  const Tables& tables;
  const Index *queries, *keys;  // of the batch element
  const Index most, step;
  float* pairs;  // [ROWS][step]
  float* lookups;
};

}  // namespace RELATTN_SET

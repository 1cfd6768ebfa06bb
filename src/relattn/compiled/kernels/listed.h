// What is different in a tile where positions are listed: d = key position - query position is any pair's own, so no
// diagonal has one row of a table, and limits are looked at pair by pair where a tile crosses them.
#pragma once
#include "lookup.h"
#include "scores.h"

namespace RELATTN_SET {

class Listed {
 public:
  // most: keys or queries that a group meets at a time.
  static Index size(const Call& call, Index most) {
    return call.lists.given() ? room_for(ROWS * rounded_up(most, PANEL), Lookup::size(most)) : 0;
  }

  // scratch: size() floats.
  Listed(const Head& of, Index most_columns, float* scratch)
      : head(of),
        call(of.call),
        queries(call.lists.queries(of.b)),
        keys(call.lists.keys(of.b)),
        most(most_columns),
        step(rounded_up(most_columns, PANEL)) {
    if (!call.lists.given()) return;
    pairs = next_part(scratch, ROWS * step);
    lookups = next_part(scratch, Lookup::size(most));
  }

  // The columns from .. stop - 1 of a block of keys, whole panels of it.
  struct Columns {
    Index from, stop;
    bool whole;  // no pair of them is beyond the limits
  };

  // Those that any of the queries i .. i + count - 1 may see of the `columns` keys from j0 on.
  Columns seen(Index i, Index count, Index j0, Index columns) const {
    if (!call.lists.limited()) return {0, columns, true};
    Reach any = call.lists.reach(queries[i]), all = any;
    for (Index r = 1; r < count; r++) {
      const Reach reach = call.lists.reach(queries[i + r]);
      any = {std::min(any.from, reach.from), std::max(any.to, reach.to)};
      all = {std::max(all.from, reach.from), std::min(all.to, reach.to)};
    }
    Index from = columns, stop = 0, found = 0;
    bool whole = true;
    for (Index c = 0; c < columns; c += PANEL) {
      const Index end = std::min(c + PANEL, columns);
      Index least = keys[j0 + c], largest = least;
      for (Index n = c + 1; n < end; n++) {
        least = std::min(least, keys[j0 + n]);
        largest = std::max(largest, keys[j0 + n]);
      }
      if (largest < any.from || least > any.to) continue;
      whole = whole && least >= all.from && largest <= all.to;
      from = std::min(from, c), stop = end, found += end - c;
    }
    return {from, stop, whole && found == stop - from};
  }
  bool sees(Index i, Index count, Index j0, Index columns) const {
    const Columns found = seen(i, count, j0, columns);
    return found.from < found.stop;
  }

  // What the scores of a group start from: relative keys and the bias, or a null pointer for nothing.
  Start scores_start(const float* x, Index i, Index real, Index j0, const Columns& columns) const {
    const bool relative = call.relative_keys.rows;
    if (!relative && !call.bias.rows) return {nullptr, 0};
    float* to = pairs + columns.from;
    if (relative)
      of_queries(call.relative_keys, i, real, j0, columns)
          .spread(x, head.relative_key_panels, head.relative_keys, to, step);
    if (call.bias.rows) {
      const Lookup lookup = of_queries(call.bias, i, real, j0, columns);
      if (relative)
        lookup.spread_bias<true>(head.bias, to, step);
      else
        lookup.spread_bias<false>(head.bias, to, step);
    }
    return start(columns);
  }

  // x_r . RV[d], for the same.
  Start values_start(const float* x, Index i, Index real, Index j0, const Columns& columns) const {
    of_queries(call.relative_values, i, real, j0, columns)
        .spread(x, head.relative_value_panels, head.relative_values, pairs + columns.from, step);
    return start(columns);
  }

  // RQ[d] . k_j; see KeyStrips::fill.
  KeyStrips key_strips(Index i0, Index count, Index j0, Index columns, float* scratch) const {
    const KeyStrips strips = KeyStrips::in(scratch, head, count, j0, columns);
    for (Index c = 0; c < columns; c += ROWS) {
      const Index real = std::min(Index(ROWS), columns - c);
      of_keys(call.relative_queries, j0 + c, real, i0, count)
          .spread(strips.keys + c * call.width, head.relative_query_panels, head.relative_queries, pairs, step);
      for (Index r = 0; r < real; r++)
        for (Index a = 0; a < count; a++) strips.at[(c + r) * strips.step + strips.last - a] = pairs[r * step + a];
    }
    return strips;
  }

  // to_r += sum_c weight[r][c] * RV[d].
  void add_values(const float* weights, Index weights_step, Index i, Index real, Index j0, const Columns& columns,
                  float* to) const {
    Lookup lookup = of_queries(call.relative_values, i, real, j0, columns);
    lookup.collect(weights + columns.from, weights_step);
    lookup.add_rows_to(head.relative_values, ROWS, to, call.value_width);
  }

  // to_r += sum_c dS[r][c] RK[d] and dRK[d] += dS[r][c] x_r, each where there is a place for it.
  void add_key_gradients(const float* differences, Index differences_step, const float* x, Index i, Index real,
                         Index j0, const Columns& columns, float* to, float* sums) const {
    Lookup lookup = of_queries(call.relative_keys, i, real, j0, columns);
    lookup.collect(differences + columns.from, differences_step);
    if (to) lookup.add_rows_to(head.relative_keys, ROWS, to, call.relative_keys.width);
    if (sums) lookup.add_gradient(x, call.relative_keys.width, ROWS, sums);
  }

  // dRV[d] += P[r][c] dO_r.
  void add_value_gradient(const float* weights, Index weights_step, const float* x, Index i, Index real, Index j0,
                          const Columns& columns, float* sums) const {
    Lookup lookup = of_queries(call.relative_values, i, real, j0, columns);
    lookup.collect(weights + columns.from, weights_step);
    lookup.add_gradient(x, call.value_width, ROWS, sums);
  }

  // db[d] += dS[r][c].
  void add_bias_gradient(const float* differences, Index differences_step, Index i, Index real, Index j0,
                         const Columns& columns, float* sums) const {
    of_queries(call.bias, i, real, j0, columns)
        .add_bias_gradient(differences + columns.from, differences_step, real, sums);
  }

  // to_j += sum_i dS_ij RQ[d] and dRQ[d] += dS_ij k_j, of a tile of `count` queries and `columns` keys; the scale comes
  // last.
  void add_query_gradients(const float* differences, Index differences_step, Index i0, Index count, Index j0,
                           Index columns, float* to, float* sums) const {
    const Index width = call.width;
    for (Index c = 0; c < columns; c += ROWS) {
      const Index real = std::min(Index(ROWS), columns - c);
      for (Index r = 0; r < ROWS; r++)
        for (Index a = 0; a < count; a++)
          pairs[r * step + a] = r < real ? differences[a * differences_step + c + r] : 0.0f;
      Lookup lookup = of_keys(call.relative_queries, j0 + c, real, i0, count);
      lookup.collect(pairs, step);
      lookup.add_rows_to(head.relative_queries, real, to + c * width, width);
      if (sums) lookup.add_gradient(call.key.of(head.b, head.key_head, j0 + c), call.key.row, real, sums);
    }
  }

 private:
  Lookup of_queries(const Band& band, Index i, Index real, Index j0, const Columns& columns) const {
    Lookup lookup(band, most, lookups);
    lookup.of_queries(queries + i, real, keys + j0 + columns.from, columns.stop - columns.from);
    return lookup;
  }
  Lookup of_keys(const Band& band, Index j, Index real, Index i0, Index count) const {
    Lookup lookup(band, most, lookups);
    lookup.of_keys(keys + j, real, queries + i0, count);
    return lookup;
  }

  // The pairs, with zeros after the last key up to the end of its panel.
  Start start(const Columns& columns) const {
    const Index rest = rounded_up(columns.stop, PANEL) - columns.stop;
    for (Index r = 0; r < ROWS && rest; r++) std::memset(pairs + r * step + columns.stop, 0, rest * sizeof(float));
    return {pairs, step};
  }

  const Head& head;
  const Call& call;
  const Index *queries, *keys;  // of the batch element
  const Index most, step;
  float* pairs = nullptr;  // [ROWS][step]
  float* lookups = nullptr;
};

}  // namespace RELATTN_SET

// All axes of a call with explicit positions, together: what they add to the scores and the values of a tile.
#pragma once
#include <type_traits>

#include "explicit_axis.h"

namespace RELATTN_SET {

class ExplicitAxes {
 public:
  const Index first;  // the number of the first explicit axis; all after it are explicit, too

  static Index size(const Call& call, Index most) {
    if (call.first_explicit() == call.axes()) return 0;
    return room_for(ROWS * ExplicitAxis::pairs_step(most), ExplicitAxis::size(most));
  }

  // scratch: size() floats.
  ExplicitAxes(const Head& of, Index most_columns, float* scratch)
      : first(of.call.first_explicit()),
        head(of),
        call(of.call),
        most(most_columns),
        step(ExplicitAxis::pairs_step(most)) {
    if (first == call.axes()) return;
    tile = next_part(scratch, ROWS * step);
    of_axis = scratch;
  }

  // The numbers from which the scores of the queries a .. a + real - 1 of a block start. Query i is the first of the
  // block. They are `start` plus the relative keys and biases of these axes. columns.from: a multiple of PANEL.
  Start scores_start(Start start, const RelativeQueries& x, Index a, Index i, Index real, Index j0,
                     const Columns& columns) const {
    if (head.pairs.at) start = sum(start, head.pairs.start(head.h, i, j0), columns);
    for (Index n = first; n < call.axes(); n++) {
      const Table &keys = head.axes[n].relative_keys, &bias = head.axes[n].bias;
      if (keys.rows)
        start = added(start, columns, [&](auto adds) {
          axis(n).template spread<adds.value>(keys, x.of(n, a), i, real, j0, columns, tile);
        });
      if (bias.rows && !head.pairs.at)
        start = added(start, columns,
                      [&](auto adds) { axis(n).template spread_bias<adds.value>(i, real, j0, columns, tile); });
    }
    return start;
  }

  // The same for x_r . RV[d].
  Start values_start(Start start, const float* x, Index i, Index real, Index j0, const Columns& columns) const {
    for (Index n = first; n < call.axes(); n++) {
      const Table& values = head.axes[n].relative_values;
      if (values.rows)
        start = added(start, columns,
                      [&](auto adds) { axis(n).template spread<adds.value>(values, x, i, real, j0, columns, tile); });
    }
    return start;
  }

  // RQ[d] . k_j for every axis, a contiguous one too.
  KeyStrips key_strips(Index i0, Index count, Index j0, Index columns, float* scratch) const {
    if (!call.has(&Axis::relative_queries)) return {};
    const KeyStrips strips = KeyStrips::in(scratch, head, count, j0, columns);
    bool filled = false;
    if (first > 0 && head.sequence().relative_queries.rows) {
      strips.fill(head, i0, count, j0, columns);
      filled = true;
    }
    for (Index n = first; n < call.axes(); n++) {
      if (!head.axes[n].relative_queries.rows) continue;
      if (filled)
        axis(n).spread_by_keys<true>(strips, i0, count, j0, columns);
      else
        axis(n).spread_by_keys<false>(strips, i0, count, j0, columns);
      filled = true;
    }
    return strips;
  }

  // to_r += sum_c weight[r][c] * RV[d].
  void add_values(const float* weights, Index weights_step, Index i, Index real, Index j0, const Columns& columns,
                  float* to) const {
    for (Index n = first; n < call.axes(); n++)
      if (head.axes[n].relative_values.rows) axis(n).add_values(weights, weights_step, i, real, j0, columns, to);
  }

  ExplicitAxis axis(Index n) const { return ExplicitAxis(head, n, most, of_axis); }

 private:
  // The tile. `spread` writes into it: it adds to the start if there is one (true_type), else it sets (false_type).
  template <class Spread>
  Start added(Start start, const Columns& columns, Spread spread) const {
    if (!start.at) {
      spread(std::false_type{});
    } else {
      if (start.at != tile)
        for (Index r = 0; r < ROWS; r++)
          std::memcpy(tile + r * step + columns.from, start.at + r * start.step + columns.from,
                      (columns.stop - columns.from) * sizeof(float));
      spread(std::true_type{});
    }
    const Index rest = rounded_up(columns.stop, PANEL) - columns.stop;  // zeros after the last key of the last panel
    for (Index r = 0; r < ROWS && rest; r++) std::memset(tile + r * step + columns.stop, 0, rest * sizeof(float));
    return {tile, step};
  }

  // The sum of two starts.
  Start sum(Start one, Start other, const Columns& columns) const {
    if (!one.at) return other;
    return added(one, columns, [&](auto) {
      for (Index r = 0; r < ROWS; r++)
        for (Index c = columns.from; c < columns.stop; c++) tile[r * step + c] += other.at[r * other.step + c];
    });
  }

  const Head& head;
  const Call& call;
  const Index most, step;
  float* tile = nullptr;  // [ROWS][step]
  float* of_axis = nullptr;
};

}  // namespace RELATTN_SET

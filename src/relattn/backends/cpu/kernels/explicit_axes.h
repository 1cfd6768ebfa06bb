// A tile with explicit positions. Every pair has its own d = key position - query position, so the pairs of a diagonal
// need not share a row of a table. All axes of a call with explicit positions are here together: what they add to the
// scores, the values and the gradients of a tile.
#pragma once
#include "lookup.h"
#include "scores.h"

namespace RELATTN_SET {

// What a thread needs for the explicit axes of a call; nothing where it has none. most: the keys or queries that a
// group takes at a time.
struct ExplicitScratch {
  Index step = 0;
  float *tile = nullptr, *pairs = nullptr;  // [ROWS][step]
  LookupScratch lookups;

  ExplicitScratch(const Call& call, Index most, Workspace& workspace) {
    if (call.first_explicit() == call.axes()) return;
    step = rounded_up(most, PANEL);
    tile = workspace.next(ROWS * step), pairs = workspace.next(ROWS * step);
    lookups = LookupScratch(most, workspace);
  }
};

class ExplicitAxes {
 public:
  const Index first;  // the number of the first explicit axis; all after it are explicit, too

  ExplicitAxes(const Head& of, const ExplicitScratch& scratch)
      : first(of.call.first_explicit()),
        head(of),
        call(of.call),
        step(scratch.step),
        tile(scratch.tile),
        pairs(scratch.pairs),
        lookups(scratch.lookups) {}

  // The numbers from which the scores of a group start: `start` plus the relative keys and biases of these axes.
  Start scores_start(Start start, const BlockQueries& queries, const Group& g) const {
    const Columns columns = {g.from, g.stop};
    if (head.pairs.at) start = sum(start, head.pairs.start(head.h, g.i, g.j0), columns);
    for (Index n = first; n < call.axes(); n++) {
      const Table &keys = head.axes[n].relative_keys, &bias = head.axes[n].bias;
      if (keys.rows)
        start = added(start, columns, [&](float* to) {
          of_queries(n, keys, g, columns).spread(queries.relative[n].row(g.a), to, step);
        });
      if (bias.rows && !head.pairs.at)
        start = added(start, columns, [&](float* to) { of_queries(n, bias, g, columns).spread_bias(to, step); });
    }
    return start;
  }

  // The same for x_r . RV[d].
  Start values_start(Start start, const float* x, const Group& g) const {
    const Columns columns = {g.from, g.stop};
    for (Index n = first; n < call.axes(); n++) {
      const Table& values = head.axes[n].relative_values;
      if (values.rows)
        start = added(start, columns, [&](float* to) { of_queries(n, values, g, columns).spread(x, to, step); });
    }
    return start;
  }

  // RQ[d] . k_j for every axis, a contiguous one too; for the queries of i0 .. i0 + count - 1 and the keys of j0 .. j0
  // + columns - 1.
  void fill(const KeyStrips& strips, Index i0, Index count, Index j0, Index columns) const {
    if (!strips.at) return;
    strips.load_keys(head, j0, columns);
    bool filled = first > 0 && head.sequence().relative_queries.rows;
    if (filled) strips.fill(head, i0, count, j0, columns);
    for (Index n = first; n < call.axes(); n++) {
      const Table& table = head.axes[n].relative_queries;
      if (!table.rows) continue;
      for (Index c = 0; c < columns; c += ROWS) {
        const Index real = std::min(Index(ROWS), columns - c);
        std::memset(pairs, 0, ROWS * step * sizeof(float));
        of_keys(n, j0 + c, real, i0, count).spread(strips.keys + c * call.width, pairs, step);
        for (Index r = 0; r < real; r++)
          for (Index a = 0; a < count; a++) {
            float& to = strips.at[(c + r) * strips.step + strips.last - a];
            to = filled ? to + pairs[r * step + a] : pairs[r * step + a];
          }
      }
      filled = true;
    }
  }

  // to_r += sum_c weight[r][c] * RV[d].
  void add_values(const float* weights, Index weights_step, const Group& g, float* to) const {
    for (Index n = first; n < call.axes(); n++) {
      const Table& table = head.axes[n].relative_values;
      if (table.rows) collected(n, table, weights, weights_step, g).add_rows_to(ROWS, to, call.value_width);
    }
  }

  // The rows of a table that a group's pairs look up on axis n, in these columns.
  Lookup of_queries(Index n, const Table& table, const Group& g, const Columns& columns) const {
    const Positions& positions = call.axis(n).positions;
    Lookup lookup(table, lookups);
    lookup.of_queries(positions.queries(head.b) + g.i, g.real, positions.keys(head.b) + g.j0 + columns.from,
                      columns.stop - columns.from);
    return lookup;
  }
  // The same, with the numbers of the pairs that the group sees taken in.
  Lookup collected(Index n, const Table& table, const float* numbers, Index numbers_step, const Group& g) const {
    Lookup lookup = of_queries(n, table, g, {g.begin, g.stop});
    lookup.collect(numbers + g.begin, numbers_step);
    return lookup;
  }

  // to_j += sum_i dS_ij RQ[d] and dRQ[d] += dS_ij k_j on axis n, for a tile of `count` queries and `columns` keys. The
  // scale comes last.
  void add_query_gradients(Index n, const float* score_gradients, Index gradients_step, Index i0, Index count, Index j0,
                           Index columns, float* to, float* sums) const {
    for (Index c = 0; c < columns; c += ROWS) {
      const Index real = std::min(Index(ROWS), columns - c);
      for (Index r = 0; r < ROWS; r++)
        for (Index a = 0; a < count; a++)
          pairs[r * step + a] = r < real ? score_gradients[a * gradients_step + c + r] : 0.0f;
      Lookup lookup = of_keys(n, j0 + c, real, i0, count);
      lookup.collect(pairs, step);
      lookup.add_rows_to(real, to + c * call.width, call.width);
      if (sums) lookup.add_gradient(call.key.of(head.b, head.key_head, j0 + c), call.key.row, real, sums);
    }
  }

 private:
  // The same for the relative queries of keys.
  Lookup of_keys(Index n, Index j, Index real, Index i0, Index count) const {
    const Positions& positions = call.axis(n).positions;
    Lookup lookup(head.axes[n].relative_queries, lookups);
    lookup.of_keys(positions.keys(head.b) + j, real, positions.queries(head.b) + i0, count);
    return lookup;
  }

  // The tile: the start, or zeros, to which `spread` adds.
  template <class Spread>
  Start added(Start start, const Columns& columns, Spread spread) const {
    const Index size = (columns.stop - columns.from) * sizeof(float);
    for (Index r = 0; r < ROWS && start.at != tile; r++)
      if (start.at)
        std::memcpy(tile + r * step + columns.from, start.at + r * start.step + columns.from, size);
      else
        std::memset(tile + r * step + columns.from, 0, size);
    spread(tile + columns.from);
    const Index rest = rounded_up(columns.stop, PANEL) - columns.stop;  // zeros after the last key of the last panel
    for (Index r = 0; r < ROWS && rest; r++) std::memset(tile + r * step + columns.stop, 0, rest * sizeof(float));
    return {tile, step};
  }

  // The sum of two starts.
  Start sum(Start one, Start other, const Columns& columns) const {
    if (!one.at) return other;
    return added(one, columns, [&](float*) {
      for (Index r = 0; r < ROWS; r++)
        for (Index c = columns.from; c < columns.stop; c++) tile[r * step + c] += other.at[r * other.step + c];
    });
  }

  const Head& head;
  const Call& call;
  const Index step;
  float *tile, *pairs;
  const LookupScratch& lookups;
};

}  // namespace RELATTN_SET

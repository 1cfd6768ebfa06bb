// The inputs of a backward tile's products where the call takes pairs: dS and P in bfloat16, and the rows that they are
// multiplied with, two by two.
#pragma once
#include "scores.h"

namespace RELATTN_SET {

// A tile of factors whose rows are paired, 2 m with 2 m + 1, for sums over queries.
struct PairedTile {
  BFloat16x2* at = nullptr;  // pair m, column: at[m * step + column]; null where it is not asked for
  Index step = 0, columns = 0;

  static constexpr Index BESIDE = LANES;  // columns on both sides that diagonals reach

  // Columns of keys: at[m][c] = (factors[2 m][c], factors[2 m + 1][c]), each rounded to the nearest bfloat16. factors:
  // those of the group that begins with the row a.
  void pair_columns(const float* factors, Index a) const { pair(factors, a, 0, columns, 0); }
  // Diagonals of offsets: at[m][c] = (factors[2 m][c], factors[2 m + 1][c + 1]), with the columns on both sides.
  void pair_diagonals(const float* factors, Index a) const { pair(factors, a, -BESIDE, columns + BESIDE, 1); }
  // The same for factors that are all 0.
  void clear(Index a) const {
    if (!at) return;
    for (Index r = a; r < a + ROWS; r += 2)
      std::memset(at + r / 2 * step - BESIDE, 0, (columns + 2 * BESIDE) * sizeof(BFloat16x2));
  }

 private:
  void pair(const float* factors, Index a, Index from, Index to, Index shift) const {
    if (!at) return;
    for (Index r = 0; r < ROWS; r += 2) {
      const float *first = factors + r * step, *second = first + step + shift;
      BFloat16x2* const row = at + (a + r) / 2 * step;
      for (Index c = from; c < to; c += LANES) store(row + c, nearest_pairs(load(first + c), load(second + c)));
    }
  }
};

// For a block of queries and a block of keys.
struct TilePairs {
  const Call& call;
  BFloat16* rows;  // a group's dS, rows of the tile's step apart; null where the call takes no pairs, as all else
  BFloat16x2 *keys, *query, *own, *gradient;  // k, q, r (if it is not q) and dO: rows two by two, without the scale
  PairedTile score_gradients, weights;        // dS and P by columns of keys
  PairedTile score_gradients_by_offset, weights_by_offset;

  TilePairs(const Call& c, Index query_block, Index key_block, Index step, Workspace& at) : call(c) {
    const Index queries = call.takes_pairs() ? query_block / 2 : 0, columns = call.takes_pairs() ? key_block / 2 : 0;
    const auto next = [&](Index count, Index inside) { return at.next<BFloat16x2>(count, inside); };
    rows = reinterpret_cast<BFloat16*>(next(queries ? ROWS * step / 2 : 0, MARGIN / 2));
    keys = next(columns * call.width, 0), query = next(queries * call.width, 0);
    own = next(queries * own_width(), 0), gradient = next(queries * call.value_width, 0);
    const auto tile = [&](bool serves) {
      return PairedTile{next(serves ? queries * step : 0, MARGIN), step, key_block};
    };
    const auto of_table = [&](const Band& band) { return band.gradient && call.takes_pairs(call.sequence, band); };
    score_gradients = tile(true), weights = tile(true);
    score_gradients_by_offset = tile(of_table(call.sequence.relative_keys));
    weights_by_offset = tile(of_table(call.sequence.relative_values));
  }

  void load_keys(Index b, Index key_head, Index j0, Index columns) const {
    pair_rows(call.key.of(b, key_head, j0), call.key.row, call.width, columns, keys);
  }
  // by_output: dO, with zeros up to a whole group.
  void load_queries(const Head& head, Index i0, Index count, const float* by_output) const {
    const Index all = rounded_up(count, ROWS), relative_width = own_width();
    pair_all(call.query.of(head.b, head.h, i0), call.query.row, call.width, count, query);
    pair_rows(by_output, call.value_width, call.value_width, all, gradient);
    const Rows& r = call.sequence.relative_query;
    if (relative_width) pair_all(r.of(head.b, head.h, i0), r.row, relative_width, count, own);
  }

  // The inputs of the sums over queries for the group a, once its dS and P are complete.
  void pair_group(const float* of_score_gradients, const float* of_weights, Index a) const {
    score_gradients.pair_columns(of_score_gradients, a), weights.pair_columns(of_weights, a);
    score_gradients_by_offset.pair_diagonals(of_score_gradients, a), weights_by_offset.pair_diagonals(of_weights, a);
  }
  void clear_group(Index a) const {
    for (const PairedTile& tile : {score_gradients, weights, score_gradients_by_offset, weights_by_offset})
      tile.clear(a);
  }

 private:
  Index own_width() const {
    const Axis& sequence = call.sequence;
    return call.takes_pairs(sequence, sequence.relative_keys) ? sequence.relative_width : 0;
  }

  // With zeros up to a whole group.
  static void pair_all(const float* rows, Index row_step, Index width, Index count, BFloat16x2* to) {
    const Index pairs = (count + 1) / 2;
    pair_rows(rows, row_step, width, count, to);
    std::memset(to + pairs * width, 0, (rounded_up(count, ROWS) / 2 - pairs) * width * sizeof(BFloat16x2));
  }
};

}  // namespace RELATTN_SET

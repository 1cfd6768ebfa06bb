// The backward pass of a tile: a block of queries of one head, and a block of keys.
//
// P_ij = exp(S'_ij - maximum_i) / total_i,  dS'_ij = P_ij * (dO_i . (v_j + sum_c RV_c[d_c]) - delta_i),
// delta_i = dO_i . O_i - dlse_i,  dS_ij = dS'_ij * (1 - tanh(S_ij / softcap)^2) where there is a cap, else dS'_ij
#pragma once
#include "backward_pairs.h"
#include "explicit_axes.h"

namespace RELATTN_SET {

// The places where a head's tiles add up the gradients of an axis; null where they are not wanted.
struct AxisSums {
  float* relative_query;                                             // [B, Hq, Lq][width]
  float *relative_keys, *relative_queries, *relative_values, *bias;  // of the head's tables
};

// The same for all axes, and for the queries.
struct TileSums {
  float* query;
  AxisSums axes[MOST_AXES];
};

// Floats of a cache line. For blocks of the usual sizes rows of a tile lie an odd number of lines apart. So columns,
// which the keys' gradients read, are spread over all of the first-level cache.
constexpr Index LINE = 16;

// The part of a tile outside of which P and dS are 0: rows, in whole groups, and columns.
struct Rectangle {
  Columns rows, columns;
};

struct BackwardTiles {
  const Call& call;
  const Index query_block, key_block;
  const Index step;  // between rows of a tile

  explicit BackwardTiles(const Call& c)
      : call(c),
        query_block(rounded_up(c.query_block, ROWS)),
        key_block(rounded_up(c.key_block, PANEL)),
        step(key_block + 2 * MARGIN + LINE) {}

  // The numbers of a row that is multiplied with panels.
  Index numbers(Index width) const { return numbers_of(width, call.takes_pairs()); }

  struct Scratch {
    BlockQueries queries;
    TilePairs pairs;
    QueryRows gradient;  // dO for a block of queries
    float *maximum, *inverse_total, *delta;
    float *weights, *score_gradients;  // P and dS, tiles with zeros all around
    float *key, *key_by_rows, *value;  // gradients of a block of keys
    float *key_panels, *value_panels;
    float *strip, *value_strip, *carried;
    float* tail;    // a group's rows of the queries, or of the relative queries of any axis
    float* slopes;  // of a group's caps; null without one
    KeyStrips key_strips;
    ExplicitScratch of_axes;

    Scratch(const BackwardTiles& pass, Workspace& at)
        : queries(pass.call, pass.query_block, at),
          pairs(pass.call, pass.query_block, pass.key_block, pass.step, at),
          gradient(pass.query_block, pass.call.value_width, pass.call.takes_pairs(), 1.0, at),
          maximum(at.next(pass.query_block)),
          inverse_total(at.next(pass.query_block)),
          delta(at.next(pass.query_block)),
          weights(pass.next_tile(at)),
          score_gradients(pass.next_tile(at)),
          key(pass.next_keys(pass.call.width, at)),
          key_by_rows(pass.next_keys(pass.call.width, at)),
          value(pass.next_keys(pass.call.value_width, at)),
          key_panels(at.next(pass.key_block * pass.numbers(pass.call.width))),
          value_panels(at.next(pass.key_block * pass.numbers(pass.call.value_width))),
          strip(at.next(Strip::size(pass.key_block))),
          value_strip(at.next(Strip::size(pass.key_block))),
          carried(at.next(ROWS * Strip::CARRIED)),
          tail(at.next(ROWS * pass.widest())),
          slopes(at.next(pass.call.caps() ? ROWS * pass.step : 0)),
          key_strips(pass.call, pass.query_block, pass.key_block, at),
          of_axes(pass.call, std::max(pass.key_block, pass.query_block), at) {}
  };

  // The part of a block of keys that all heads share.
  void pack(Index b, Index key_head, Index j0, Index columns, const Scratch& s) const {
    const auto pack_as = [&](auto* keys, auto* values) {
      pack_panels(call.key.of(b, key_head, j0), call.key.row, call.width, columns, keys);
      pack_panels(call.value.of(b, key_head, j0), call.value.row, call.value_width, columns, values);
    };
    if (!call.takes_pairs()) return pack_as(s.key_panels, s.value_panels);
    pack_as(reinterpret_cast<BFloat16x2*>(s.key_panels), reinterpret_cast<BFloat16x2*>(s.value_panels));
    s.pairs.load_keys(b, key_head, j0, columns);
  }

  void run(const Head& head, const TileSums& sums, Index i0, Index count, Index j0, Index columns,
           const Scratch& s) const {
    const Index rows = rounded_up(count, ROWS);
    if (!Visible(call, head.b, head.h, i0, count).sees(j0, columns)) return;
    load_queries(head, i0, count, s);
    const ExplicitAxes axes(head, s.of_axes);
    axes.fill(s.key_strips, i0, count, j0, columns);
    if (s.key_strips.at) std::memset(s.score_gradients + rows * step - MARGIN, 0, NN_ROWS * step * sizeof(float));
    Rectangle seen = {{rows, 0}, {columns, 0}};
    for (Index a = 0; a < rows; a += ROWS) {
      const Group g(call, head.b, head.h, i0, count, a, j0, columns);
      float *weights = s.weights + a * step, *score_gradients = s.score_gradients + a * step;
      for (int r = 0; r < ROWS; r++)
        for (float* row : {weights + r * step, score_gradients + r * step}) {
          if (g.from > 0) std::memset(row, 0, g.from * sizeof(float));
          if (g.to < key_block) std::memset(row + g.to, 0, (key_block - g.to) * sizeof(float));
        }
      if (!g.sees()) {  // its rows are zeros, whatever the tile before left there
        if (call.takes_pairs()) s.pairs.clear_group(a);
        continue;
      }
      seen.rows = {std::min(seen.rows.from, a), a + ROWS};
      seen.columns = {std::min(seen.columns.from, g.from), std::max(seen.columns.stop, g.stop)};
      // S, then P = e^(S' - maximum) / total and dS' = P * (dO . (v + RV)^T - delta)
      weights_and_score_gradients(head, axes, g, weights, score_gradients, s);
      if (call.drops()) drop(head, g, weights, score_gradients, s);
      // da += dS'^T 1, dM += dS', then dS = dS' * (1 - tanh^2)
      softcap_backward(head, g, score_gradients, s);
      if (call.takes_pairs()) {
        round_rows(score_gradients, step, g, s.pairs.rows);
        s.pairs.pair_group(score_gradients, weights, a);
      }
      // dq += dS k, and dq or dr += dS RK along the band
      add_query_gradient(head, sums, g, score_gradients, s);
      // dr += dS RK, dRK += dS^T r, dRV += P^T dO, db += dS by the rows that pairs of explicit positions look up
      for (Index n = axes.first; n < call.axes(); n++)
        add_explicit_gradients(head, n, axes, sums, g, weights, score_gradients, s);
    }
    // dk += dS^T q, dv += P^T dO
    add_key_gradients(seen, i0, j0, s);
    // dk += dS^T RQ, dRQ += dS k by the rows that pairs of explicit positions look up
    for (Index n = axes.first; n < call.axes(); n++)
      if (head.axes[n].relative_queries.rows)
        axes.add_query_gradients(n, s.score_gradients, step, i0, count, j0, columns, s.key_by_rows,
                                 sums.axes[n].relative_queries);
    if (call.sequence.positions.are_explicit()) return;
    const Axis& axis = call.sequence;
    const AxisSums& of_axis = sums.axes[0];
    // dRK += dS^T r along the diagonals of the band
    add_table_gradient(axis.relative_keys, of_axis.relative_keys, s.score_gradients, s.pairs.score_gradients_by_offset,
                       rows_of_keys(head, i0, s), seen, i0, j0);
    // dRV += P^T dO along the diagonals
    add_table_gradient(axis.relative_values, of_axis.relative_values, s.weights, s.pairs.weights_by_offset,
                       {s.gradient.floats, call.value_width, s.pairs.gradient}, seen, i0, j0);
    // db += the sums of dS along the diagonals
    add_bias_gradient(of_axis.bias, s.score_gradients, seen, i0, j0);
    // dk += dS^T RQ and dRQ += dS k along the diagonals
    add_relative_query_gradients(head, of_axis.relative_queries, seen, i0, j0, s);
  }

 private:
  float* next_tile(Workspace& at) const { return at.next((query_block + 2 * NN_ROWS) * step, NN_ROWS * step + MARGIN); }
  float* next_keys(Index width, Workspace& at) const { return at.next((key_block + NN_ROWS) * width); }
  Index widest() const {
    Index width = call.width;
    for (Index n = 0; n < call.axes(); n++) width = std::max(width, call.axis(n).relative_width);
    return width;
  }

  // Queries times the scale, dO, maximum, 1 / total and delta. Rows without a key, and rows after the last, add
  // nothing.
  void load_queries(const Head& head, Index i0, Index count, const Scratch& s) const {
    const Index rows = rounded_up(count, ROWS), width = call.value_width;
    float* const gradient = s.gradient.floats;
    s.queries.load(head, i0, count);
    copy_rows(call.output_gradient, head.b, head.h, i0, count, width, 1.0f, gradient);
    if (s.gradient.pairs) {  // dP and delta cancel only if both take the same dO
      for (Index n = 0; n < count * width; n += LANES) store(gradient + n, (Vector)(nearest(load(gradient + n)) << 16));
      copy_pairs(gradient, width, count, width, s.gradient.pairs);
    }
    const Index first = head.counted() * call.queries + i0;
    for (Index a = 0; a < rows; a++) {
      const bool sees = a < count && call.total[first + a] != 0.0f;
      s.maximum[a] = sees ? call.maximum[first + a] : INFINITY;
      s.inverse_total[a] = sees ? 1.0f / call.total[first + a] : 0.0f;
      s.delta[a] = 0.0f;
      if (sees) {
        Vector sums = {};
        for (Index d = 0; d < width; d += LANES)
          sums += load(gradient + a * width + d) * load(call.output + (first + a) * width + d);
        s.delta[a] = sum(sums) - call.lse_gradient[first + a];
      } else {
        std::memset(gradient + a * width, 0, width * sizeof(float));
        if (s.gradient.pairs)
          std::memset(s.gradient.pairs + a * numbers(width), 0, numbers(width) * sizeof(BFloat16x2));
      }
    }
    if (call.takes_pairs()) s.pairs.load_queries(head, i0, count, gradient);
  }

  void weights_and_score_gradients(const Head& head, const ExplicitAxes& axes, const Group& g, float* weights,
                                   float* score_gradients, const Scratch& s) const {
    // r RK^T and b along the band, k RQ^T, and what other axes have: where S begins
    Index next = UNLIMITED;
    Start start =
        scores_start(head, s.queries.relative[0].of(g.a), g, Strip::step(key_block), s.strip, s.carried, next);
    start = axes.scores_start(start, s.queries, g);
    if (s.key_strips.at) start = s.key_strips.add_to(start, g, weights, step);
    // S = scale * q k^T + that, then the cap, the key bias and masks
    Vector most[ROWS];
    scores_of(head, s.queries.query.of(g.a), g, start, weights, step, most);
    if (call.changes_scores() || !g.whole) apply_masks(head, g, weights, step, s.slopes, most);
    // dO RV^T along the band, where dP begins
    Start values = {nullptr, 0};
    const Operand gradient = s.gradient.of(g.a);
    const Table& table = head.sequence().relative_values;
    if (table.rows && !call.sequence.positions.are_explicit()) {
      const Strip strip{s.value_strip, Strip::step(key_block), table};
      next = UNLIMITED;
      values = strip.fill(gradient, g.offset - table.band->first, g.from, g.to, s.carried, next);
    }
    values = axes.values_start(values, gradient.floats, g);
    // dP = dO v^T + that, P and dS' = P * (dP - delta)
    const Rowwise rows = {s.maximum + g.a, s.inverse_total + g.a, s.delta + g.a};
    const auto of_numbers = [&](auto* of_gradient, auto* panels) {
      const Index width = numbers(call.value_width);
      by_width(width, [&](auto known) {
        if (call.drops())
          score_gradients_of_width<known.known, true>(of_gradient, panels, width, rows, values, g.from, g.to, weights,
                                                      score_gradients, step);
        else
          score_gradients_of_width<known.known, false>(of_gradient, panels, width, rows, values, g.from, g.to, weights,
                                                       score_gradients, step);
      });
    };
    if (DOTS && gradient.pairs)
      of_numbers(gradient.pairs, reinterpret_cast<const BFloat16x2*>(head.panels.values));
    else
      of_numbers(gradient.floats, head.panels.values);
  }

  struct Rowwise {
    const float *maximum, *inverse_total, *delta;
  };

  // Scores become weights P, and score_gradients become P * (dO . (v + RV) - delta). Where dropout's factors still
  // follow, score_gradients are only dO . (v + RV).
  template <int KNOWN, bool DROPS, class Number>
  static void score_gradients_of_width(const Number* __restrict gradient, const Number* __restrict panels, Index width,
                                       Rowwise rows, Start values, Index from, Index to, float* __restrict weights,
                                       float* __restrict score_gradients, Index step) {
    for (Index column = from; column < to; column += PANEL) {
      Sums<> sums;
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const Vector delta = splat(DROPS ? 0.0f : -rows.delta[r]);
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++)
          sums[r][v] = values.at ? delta + load(values.at + r * values.step + column + v * LANES) : delta;
      }
      multiply_nt<KNOWN, ROWS>(gradient, panels + column * width, width, sums);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const Vector maximum = splat(rows.maximum[r]), inverse_total = splat(rows.inverse_total[r]);
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) {
          float* weight = weights + r * step + column + v * LANES;
          const Vector p = exponential(load(weight) - maximum) * inverse_total;
          store(weight, p);
          store(score_gradients + r * step + column + v * LANES, DROPS ? sums[r][v] : p * sums[r][v]);
        }
      }
    }
  }

  // With dropout's factors F: the weights P become P F. In place of dS lies dO . (v + RV); it becomes P (F dO . (v +
  // RV) - delta).
  void drop(const Head& head, const Group& g, float* weights, float* score_gradients, const Scratch& s) const {
    Dropout(call).each(head.b, head.h, g.i, ROWS, g.j0, g.from, g.to, [&](Index r, Index column, Vector factor) {
      float *weight = weights + r * step + column, *score_gradient = score_gradients + r * step + column;
      const Vector p = load(weight);
      store(score_gradient, p * (load(score_gradient) * factor - splat(s.delta[g.a + r])));
      store(weight, p * factor);
    });
  }

  // dq_i += scale * sum_j dS_ij (k_j + RK[d]), where r is q; else dr_i takes the second part. RK is that of contiguous
  // positions.
  void add_query_gradient(const Head& head, const TileSums& sums, const Group& g, const float* score_gradients,
                          const Scratch& s) const {
    const Index width = call.width, first = head.counted() * call.queries + g.i;
    const Table& table = head.sequence().relative_keys;
    const bool relative = table.rows && !call.sequence.positions.are_explicit();
    const Index relative_width = call.sequence.relative_width;
    if (float* const gradient = sums.query) {
      const bool whole = g.real == ROWS;
      float* to = whole ? gradient + first * width : s.tail;
      if (!whole) std::memset(to, 0, ROWS * width * sizeof(float));
      if (call.takes_pairs()) {
        const Index even = g.begin / 2 * 2;
        for (int r = 0; r < ROWS; r += NN_ROWS)
          multiply_nn(s.pairs.rows + r * step + even, step, 2, s.pairs.keys + even / 2 * width, width,
                      (g.stop - even + 1) / 2, to + r * width, width, width);
      } else {
        const float* keys = call.key.of(head.b, head.key_head, g.j0 + g.begin);
        for (int r = 0; r < ROWS; r += NN_ROWS)
          multiply_nn(score_gradients + r * step + g.begin, step, 1, keys, call.key.row, g.stop - g.begin,
                      to + r * width, width, width);
      }
      if (relative && !relative_width) add_band(table, g, score_gradients, s.pairs.rows, step, to);
      if (!whole) add_tail(to, g.real, gradient + first * width, width);
    }
    if (sums.axes[0].relative_query && relative) {
      std::memset(s.tail, 0, ROWS * relative_width * sizeof(float));
      add_band(table, g, score_gradients, s.pairs.rows, step, s.tail);
      add_tail(s.tail, g.real, sums.axes[0].relative_query + first * relative_width, relative_width);
    }
  }

  // Copies the first rows of a group to their place.
  static void add_tail(const float* tail, Index rows, float* to, Index width) {
    for (Index r = 0; r < rows; r++) add_row(to + r * width, tail + r * width, 1.0f, width);
  }

  // What the tables of an explicit axis add to the gradients of a group of queries, and the gradients of the tables.
  void add_explicit_gradients(const Head& head, Index n, const ExplicitAxes& axes, const TileSums& all, const Group& g,
                              const float* weights, const float* score_gradients, const Scratch& s) const {
    const QueryRows& relative = s.queries.relative[n];
    const Tables& tables = head.axes[n];
    const AxisSums& sums = all.axes[n];
    float* const gradient = call.axis(n).relative_width ? sums.relative_query : all.query;
    if (tables.relative_keys.rows && (gradient || sums.relative_keys)) {
      const Lookup lookup = axes.collected(n, tables.relative_keys, score_gradients, step, g);
      if (gradient) {
        std::memset(s.tail, 0, ROWS * relative.width * sizeof(float));
        lookup.add_rows_to(ROWS, s.tail, relative.width);
        add_tail(s.tail, g.real, gradient + (head.counted() * call.queries + g.i) * relative.width, relative.width);
      }
      if (sums.relative_keys) lookup.add_gradient(relative.row(g.a), relative.width, ROWS, sums.relative_keys);
    }
    if (sums.relative_values)
      axes.collected(n, tables.relative_values, weights, step, g)
          .add_gradient(s.gradient.row(g.a), call.value_width, ROWS, sums.relative_values);
    if (sums.bias)
      axes.of_queries(n, tables.bias, g, {g.begin, g.stop})
          .add_bias_gradient(score_gradients + g.begin, step, g.real, sums.bias);
  }

  // dk_j += sum_i dS_ij (scale q_i), dv_j += sum_i P_ij dO_i. Pairs of q are without the scale; then it comes last.
  void add_key_gradients(const Rectangle& seen, Index i0, Index j0, const Scratch& s) const {
    for (Index c = seen.columns.from; c < seen.columns.stop; c += NN_ROWS) {
      const Index first = std::max(seen.rows.from, call.first_query(j0 + c) - i0);
      const Index end = std::min(seen.rows.stop, call.end_query(j0 + c, NN_ROWS) - i0);
      if (call.takes_pairs()) {
        const Index m = first / 2, pairs = (end + 1) / 2 - m;
        multiply_nn(s.pairs.score_gradients.at + m * step + c, 1, step, s.pairs.query + m * call.width, call.width,
                    pairs, s.key + c * call.width, call.width, call.width);
        multiply_nn(s.pairs.weights.at + m * step + c, 1, step, s.pairs.gradient + m * call.value_width,
                    call.value_width, pairs, s.value + c * call.value_width, call.value_width, call.value_width);
        continue;
      }
      multiply_nn(s.score_gradients + c + first * step, 1, step, s.queries.query.floats + first * call.width,
                  call.width, end - first, s.key + c * call.width, call.width, call.width);
      multiply_nn(s.weights + c + first * step, 1, step, s.gradient.floats + first * call.value_width, call.value_width,
                  end - first, s.value + c * call.value_width, call.value_width, call.value_width);
    }
  }

  // The rows of a block of queries whose sums are a table's gradient. Also as pairs, null where the table takes none.
  struct Summed {
    const float* rows;
    Index step;
    const BFloat16x2* pairs;
  };
  // The relative queries: times the scale, or without it where they are pairs.
  Summed rows_of_keys(const Head& head, Index i0, const Scratch& s) const {
    const QueryRows& relative = s.queries.relative[0];
    if (!call.takes_pairs(call.sequence, call.sequence.relative_keys))
      return {relative.floats, relative.width, nullptr};
    const bool own = call.sequence.relative_width;
    const Rows& rows = own ? call.sequence.relative_query : call.query;
    return {rows.of(head.b, head.h, i0), rows.row, own ? s.pairs.own : s.pairs.query};
  }

  // dT[t] += sum of factors[a][c] * x_a over the pairs with t = corner + c - a: one diagonal of the tile for each row.
  void add_table_gradient(const Band& band, float* sums, const float* factors, const PairedTile& by_offset,
                          const Summed& x, const Rectangle& seen, Index i0, Index j0) const {
    if (!sums) return;
    const auto [from, stop] = seen.columns;
    const Index corner = call.origin + j0 - i0 - band.first, width = band.width;
    const Index first = std::max(Index(0), corner + from - (seen.rows.stop - 1));
    const Index end = std::min(band.count, corner + stop - seen.rows.from);
    for (Index t = first; t < end; t += NN_ROWS) {
      const Index a = std::max(seen.rows.from, corner + from - t - (NN_ROWS - 1));
      const Index b = std::min(seen.rows.stop, corner + stop - t);
      if (a >= b) continue;
      if (DOTS && by_offset.at) {
        const Index m = a / 2;
        multiply_nn(by_offset.at + (t - corner + 2 * m) + m * step, 1, step + 2, x.pairs + m * width, width,
                    (b + 1) / 2 - m, sums + t * width, width, width);
      } else {
        multiply_nn(factors + (t - corner + a) + a * step, 1, step + 1, x.rows + a * x.step, x.step, b - a,
                    sums + t * width, width, width);
      }
    }
    if (!band.clamps) return;
    const Index columns = std::min(key_block, call.keys - j0);
    for (Index a = seen.rows.from; a < std::min(seen.rows.stop, call.queries - i0); a++) {
      const float* row = factors + a * step;
      const Index inside = std::min(std::max(a - corner, Index(0)), columns);
      const Index beyond = std::min(std::max(band.count + a - corner, inside), columns);
      const float* of = x.rows + a * x.step;
      if (inside > 0) add_row(sums, of, total(row, 0, inside), width);
      if (beyond < columns) add_row(sums + (band.count - 1) * width, of, total(row, beyond, columns), width);
    }
  }

  // db[t] += sum of dS over the diagonal t.
  void add_bias_gradient(float* sums, const float* score_gradients, const Rectangle& seen, Index i0, Index j0) const {
    if (!sums) return;
    const Band& band = call.sequence.bias;
    const auto [from, stop] = seen.columns;
    const Index corner = call.origin + j0 - i0 - band.first, last = corner + stop - seen.rows.from;
    for (Index t = corner + from - (seen.rows.stop - 1); t < last; t += LANES) {
      const Index first = std::max(seen.rows.from, corner + from - t - (LANES - 1));
      const Index end = std::min(seen.rows.stop, corner + stop - t);
      Vector diagonals = {};
      for (Index a = first; a < end; a++) diagonals += load(score_gradients + (t - corner) + a * (step + 1));
      for (Index n = 0; n < LANES && t + n < last; n++) {
        const Index row = band.row_of(band.first + t + n);
        if (row != NO_ROW) sums[row] += diagonals[n];
      }
    }
  }

  // dmask_ij += dS'_ij and da_j += dS'_ij, for the pairs of a group. Then dS' becomes dS.
  void softcap_backward(const Head& head, const Group& g, float* score_gradients, const Scratch& s) const {
    if (call.mask_gradient) {
      float* to = call.mask_gradient + head.b * call.mask_gradient_batch + head.h * call.mask_gradient_head +
                  g.i * call.mask_gradient_query + g.j0 * call.mask_gradient_key;
      for (Index r = 0; r < g.real; r++)
        for (Index c = g.from; c < g.stop; c++)
          to[r * call.mask_gradient_query + c * call.mask_gradient_key] += score_gradients[r * step + c];
    }
    if (call.key_bias_gradient) {
      float* to = call.key_bias_gradient + head.counted() * call.keys + g.j0;
      for (Index r = 0; r < g.real; r++)
        for (Index c = g.from; c < g.stop; c++) to[c] += score_gradients[r * step + c];
    }
    if (!call.caps()) return;
    for (Index r = 0; r < g.real; r++)
      for (Index c = g.from; c < g.stop; c++) score_gradients[r * step + c] *= s.slopes[r * step + c];
  }

  // dk_j += scale * sum_i dS_ij RQ[d]; dRQ[d] += scale * sum over its diagonal of dS_ij k_j. The scale comes last.
  void add_relative_query_gradients(const Head& head, float* sums, const Rectangle& seen, Index i0, Index j0,
                                    const Scratch& s) const {
    const Table& table = head.sequence().relative_queries;
    if (!table.rows) return;
    const Band& band = *table.band;
    const auto [from, stop] = seen.columns;
    const Index corner = call.origin + j0 - i0 - band.first, width = band.width;
    const Index after = corner - seen.rows.from, before = corner - (seen.rows.stop - 1);  // t of the first column
    for (Index c = from; c < stop; c += NN_ROWS) {
      const Index first = std::max(Index(0), before + c), end = std::min(band.count, after + c + NN_ROWS);
      if (first < end)
        multiply_nn(s.score_gradients + (corner + c - first) * step + c, step + 1, -step, table.rows + first * width,
                    width, end - first, s.key_by_rows + c * width, width, width);
    }
    const float* keys = call.key.of(head.b, head.key_head, j0);
    if (sums) {
      const Index first = std::max(Index(0), before + from), end = std::min(band.count, after + stop);
      for (Index t = first; t < end; t += NN_ROWS) {
        const Index a = std::max(from, t - after), b = std::min(stop, t - before + NN_ROWS);
        if (a < b)
          multiply_nn(s.score_gradients + (corner - t + a) * step + a, -step, step + 1, keys + a * call.key.row,
                      call.key.row, b - a, sums + t * width, width, width);
      }
    }
    if (!band.clamps) return;
    const float* last = table.rows + (band.count - 1) * width;
    float first_sums[LANES], last_sums[LANES];
    for (Index c = from; c < stop; c++) {
      const Index n = c % LANES;
      if (n == 0) sum_beside(band, s.score_gradients + c, corner + c, seen.rows, first_sums, last_sums);
      add_row(s.key_by_rows + c * width, table.rows, first_sums[n], width);
      add_row(s.key_by_rows + c * width, last, last_sums[n], width);
      if (!sums) continue;
      add_row(sums, keys + c * call.key.row, first_sums[n], width);
      add_row(sums + (band.count - 1) * width, keys + c * call.key.row, last_sums[n], width);
    }
  }

  // For each of LANES columns: the sum over the queries with an offset before the table's first row, and the sum over
  // those with an offset after its last row. corner: t of the first column and the first query.
  void sum_beside(const Band& band, const float* columns, Index corner, const Columns& rows, float* before,
                  float* beyond) const {
    Vector after_key = {}, before_key = {};
    for (Index a = std::max(rows.from, corner + 1); a < rows.stop; a++) {
      const int32_t lanes = int32_t(std::min(a - corner, Index(LANES)));  // so many columns have t < 0
      after_key += counting() < lanes ? load(columns + a * step) : Vector{};
    }
    for (Index a = rows.from; a < std::min(rows.stop, corner + LANES - band.count); a++) {
      const int32_t first = int32_t(std::max(a - corner + band.count, Index(0)));  // from here on t >= count
      before_key += counting() >= first ? load(columns + a * step) : Vector{};
    }
    store(before, after_key), store(beyond, before_key);
  }
};

}  // namespace RELATTN_SET

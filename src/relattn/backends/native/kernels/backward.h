// The backward pass, in one: a unit of work is a part of the keys of a slot, a share of the key heads. It meets the
// queries of all heads that share them.
//
// P_ij = exp(S_ij - maximum_i) / total_i,  dS_ij = P_ij * (dO_i . (v_j + RV[d]) - delta_i),  delta_i = dO_i . O_i -
// dlse_i
//
// Gradients of tables are summed per unit, over its key heads in order, and then over the units in order; those of
// queries over the parts in order. Slots and parts follow from the shape, so every number of threads gives the same
// bits.
#pragma once
#include "scores.h"
#include "table_sums.h"

namespace RELATTN_SET {

constexpr Index SLOTS = 8;                      // units, or more where there are more heads with tables of their own
constexpr Index MOST_COPIED = 4 * 1024 * 1024;  // floats of copies of the queries' gradients: 16 MiB

struct Backward {
  const Call& call;
  const Packed& packed;
  TableSums relative_keys, relative_queries, relative_values, bias;
  const Index query_block, key_block;
  const Index slots, parts;
  const Index step;                             // between rows of a tile
  float *query_copies, *relative_query_copies;  // what the parts after the first add up, [parts - 1][B, Hq, Lq][width]

  static bool by_head(const Call& c) {
    for (const Band* band : {&c.relative_keys, &c.relative_queries, &c.relative_values, &c.bias})
      if (band->gradient && band->heads > 1) return true;
    return false;
  }
  // Whether heads add to the same numbers: then one slot has all of them, in order.
  static bool shares_mask_gradient(const Call& c) {
    return c.mask_gradient && ((c.batch > 1 && !c.mask_gradient_batch) || (c.heads > 1 && !c.mask_gradient_head));
  }
  static Index slots_of(const Call& c) {
    if (shares_mask_gradient(c)) return 1;
    return by_head(c) ? c.key_heads : std::min(c.batch * c.key_heads, SLOTS);
  }
  // Few slots: each shares its keys out, every `parts`-th block of them to one part, as far as the copies of the
  // queries' gradients stay small.
  static Index parts_of(const Call& c) {
    if (c.mask_gradient && !c.mask_gradient_key) return 1;  // every key adds to the same numbers
    const Index block = rounded_up(c.key_block, PANEL);
    const Index copy = std::max(Index(1), query_size(c) + relative_query_size(c));
    return std::max(Index(1), std::min({SLOTS / slots_of(c), (c.keys + block - 1) / block, 1 + MOST_COPIED / copy}));
  }
  static Index query_size(const Call& c) { return c.query_gradient ? c.batch * c.heads * c.queries * c.width : 0; }
  static Index relative_query_size(const Call& c) {
    return c.relative_query_gradient ? c.batch * c.heads * c.queries * c.relative_width : 0;
  }
  // Floats of workspace that the units share.
  static Index sums(const Call& c) {
    const Index slots = slots_of(c), parts = parts_of(c);
    return TableSums::size(c.relative_keys, slots, parts) + TableSums::size(c.relative_queries, slots, parts) +
           TableSums::size(c.relative_values, slots, parts) + TableSums::size(c.bias, slots, parts) +
           (parts - 1) * (query_size(c) + relative_query_size(c));
  }

  Backward(const Call& c, const Packed& p, float*& workspace)
      : call(c),
        packed(p),
        query_block(rounded_up(c.query_block, ROWS)),
        key_block(rounded_up(c.key_block, PANEL)),
        slots(slots_of(c)),
        parts(parts_of(c)),
        step(key_block + 2 * MARGIN) {
    query_copies = workspace;
    relative_query_copies = query_copies + (parts - 1) * query_size(c);
    workspace = relative_query_copies + (parts - 1) * relative_query_size(c);
    relative_keys = TableSums(c.relative_keys, slots, parts, workspace);
    relative_queries = TableSums(c.relative_queries, slots, parts, workspace);
    relative_values = TableSums(c.relative_values, slots, parts, workspace);
    bias = TableSums(c.bias, slots, parts, workspace);
  }

  Index units() const { return slots * parts; }

  Index tile_size() const { return (query_block + 2 * NN_ROWS) * step; }
  Index scratch() const {
    const Index keys = key_block + NN_ROWS;
    return query_block * (call.width + call.relative_width + call.value_width + 3) + 2 * tile_size() +
           keys * (2 * call.width + call.value_width) + key_block * (call.width + call.value_width) +
           2 * Strip::size(key_block) + Strip::kept_size() + ROWS * (call.width + call.relative_width) +
           KeyStrips::size(call, query_block, key_block);
  }

  // The key heads of a slot, in order: those of one head where tables belong to heads, all where there is one slot,
  // else an equal share.
  void run(Index number, float* scratch) const {
    const Unit unit = {number / parts, number % parts};
    const Index heads = call.batch * call.key_heads, group = call.heads / call.key_heads;
    const bool one_head = by_head(call) && slots > 1;
    std::memset(scratch, 0, this->scratch() * sizeof(float));
    for (const TableSums* sums : {&relative_keys, &relative_queries, &relative_values, &bias})
      sums->clear(unit.slot, unit.part, one_head ? unit.slot * group : 0, one_head ? group : call.heads);
    if (one_head)
      for (Index b = 0; b < call.batch; b++) key_head(unit, b, unit.slot, scratch);
    else
      for (Index n = unit.slot * heads / slots; n < (unit.slot + 1) * heads / slots; n++)
        key_head(unit, n / call.key_heads, n % call.key_heads, scratch);
  }

  // The units of the step after it: a query head each. Its gradients of all parts in order, and the scale that they
  // carry.
  Index query_heads() const { return call.batch * call.heads; }
  void finish_queries(Index n) const {
    finish(call.query_gradient, query_copies, n * call.queries * call.width, call.queries * call.width,
           query_size(call));
    finish(call.relative_query_gradient, relative_query_copies, n * call.queries * call.relative_width,
           call.queries * call.relative_width, relative_query_size(call));
  }

  // The units of the last step: a row of a table's gradient each.
  Index rows_of_tables() const {
    return rows(call.relative_keys) + rows(call.relative_queries) + rows(call.relative_values) + rows(call.bias);
  }
  void write_row(Index row) const {
    const float scale = float(call.scale);
    if (row < rows(call.relative_keys)) return relative_keys.write(call.relative_keys, row, 1.0f);
    row -= rows(call.relative_keys);
    if (row < rows(call.relative_queries)) return relative_queries.write(call.relative_queries, row, scale);
    row -= rows(call.relative_queries);
    if (row < rows(call.relative_values)) return relative_values.write(call.relative_values, row, 1.0f);
    bias.write(call.bias, row - rows(call.relative_values), 1.0f);
  }

 private:
  static Index rows(const Band& band) { return band.gradient ? band.heads * band.count : 0; }

  void finish(float* gradient, const float* copies, Index first, Index count, Index copy) const {
    if (!gradient) return;
    const Vector scale = splat(float(call.scale));
    for (Index at = first; at < first + count; at += LANES) {
      Vector sum = load(gradient + at);
      for (Index p = 1; p < parts; p++) sum += load(copies + (p - 1) * copy + at);
      store(gradient + at, sum * scale);
    }
  }

  struct Unit {
    Index slot, part;
  };

  // Where a part adds up the gradients of queries; null where they are not wanted.
  float* query_gradient(Index part) const {
    return part && call.query_gradient ? query_copies + (part - 1) * query_size(call) : call.query_gradient;
  }
  float* relative_query_gradient(Index part) const {
    return part && call.relative_query_gradient ? relative_query_copies + (part - 1) * relative_query_size(call)
                                                : call.relative_query_gradient;
  }
  // The first part's begin with zeros, as the caller gave them.
  void clear_queries(Index part, Index b, Index key_head) const {
    if (part == 0) return;
    const Index group = call.heads / call.key_heads, first = (b * call.heads + key_head * group) * call.queries;
    const Index rows = group * call.queries;
    if (float* to = query_gradient(part)) std::memset(to + first * call.width, 0, rows * call.width * sizeof(float));
    if (float* to = relative_query_gradient(part))
      std::memset(to + first * call.relative_width, 0, rows * call.relative_width * sizeof(float));
  }

  struct Scratch {
    float *query, *relative_query, *gradient, *maximum, *share, *delta;  // of a block of queries; share is 1 / total
    float *weights, *differences;                                        // P and dS, tiles with zeros all around
    float *key, *key_by_rows, *value;                                    // gradients of a block of keys
    float *key_panels, *value_panels;
    float *strip, *value_strip, *kept, *tail, *relative_tail, *key_strips;

    Scratch(const Backward& pass, float* at) {
      const Call& c = pass.call;
      const Index rows = pass.query_block, keys = pass.key_block + NN_ROWS, strip_size = Strip::size(pass.key_block);
      const Index inside = NN_ROWS * pass.step + MARGIN;
      auto take = [&at](Index size) { return at += size, at - size; };
      query = take(rows * c.width), relative_query = take(rows * c.relative_width),
      gradient = take(rows * c.value_width);
      maximum = take(rows), share = take(rows), delta = take(rows);
      weights = take(pass.tile_size()) + inside, differences = take(pass.tile_size()) + inside;
      key = take(keys * c.width), key_by_rows = take(keys * c.width), value = take(keys * c.value_width);
      key_panels = take(pass.key_block * c.width), value_panels = take(pass.key_block * c.value_width);
      strip = take(strip_size), value_strip = take(strip_size), kept = take(Strip::kept_size());
      tail = take(ROWS * c.width), relative_tail = take(ROWS * c.relative_width);
      key_strips = at;
    }
  };

  void key_head(Unit unit, Index b, Index key_head, float* scratch) const {
    const Scratch s(*this, scratch);
    const Index group = call.heads / call.key_heads, width = call.width, value_width = call.value_width;
    const float scale = float(call.scale);
    clear_queries(unit.part, b, key_head);
    for (Index j0 = unit.part * key_block; j0 < call.keys; j0 += parts * key_block) {
      const Index columns = std::min(key_block, call.keys - j0);
      pack_panels(call.key.of(b, key_head, j0), call.key.row, width, columns, s.key_panels);
      pack_panels(call.value.of(b, key_head, j0), call.value.row, value_width, columns, s.value_panels);
      std::memset(s.key, 0, columns * width * sizeof(float));
      std::memset(s.value, 0, columns * value_width * sizeof(float));
      if (call.relative_queries.rows) std::memset(s.key_by_rows, 0, columns * width * sizeof(float));
      for (Index h = key_head * group; h < (key_head + 1) * group; h++) {
        const Head head(call, packed, b, h, {s.key_panels, s.value_panels, j0});
        // The queries that see any of these keys.
        const Index first = call.highest == -NEVER ? 0 : std::max(Index(0), j0 + call.origin - call.highest);
        const Index end = call.lowest == NEVER
                              ? call.queries
                              : std::min(call.queries, j0 + columns - 1 + call.origin - call.lowest + 1);
        for (Index i0 = first / ROWS * ROWS; i0 < end; i0 += query_block)
          tile(head, unit, i0, std::min(query_block, call.queries - i0), j0, columns, s);
      }
      const Index n = (b * call.key_heads + key_head) * call.keys + j0;
      for (Index c = 0; c < columns; c++) {
        if (call.key_gradient)
          for (Index d = 0; d < width; d += LANES) {
            Vector x = load(s.key + c * width + d);
            if (call.relative_queries.rows) x += load(s.key_by_rows + c * width + d) * splat(scale);
            store(call.key_gradient + (n + c) * width + d, x);
          }
        if (call.value_gradient)
          std::memcpy(call.value_gradient + (n + c) * value_width, s.value + c * value_width,
                      value_width * sizeof(float));
      }
    }
  }

  void tile(const Head& head, Unit unit, Index i0, Index count, Index j0, Index columns, const Scratch& s) const {
    const Index rows = rounded_up(count, ROWS);
    load_queries(head, i0, count, s);
    KeyStrips by_key = {};
    if (call.relative_queries.rows) {
      by_key = KeyStrips::fill(head, i0, count, j0, columns, s.key_strips);
      std::memset(s.differences + rows * step - MARGIN, 0, NN_ROWS * step * sizeof(float));
    }
    for (Index a = 0; a < rows; a += ROWS) {
      const Index i = i0 + a, real = std::min(Index(ROWS), count - a);
      const Index begin = std::max(call.first_key(i) - j0, Index(0));
      const Index stop = std::min(call.end_key(i, real) - j0, columns);
      const bool sees =
          begin < stop;  // any of these keys; else its rows are zeros, whatever the tile before left there
      const Index from = sees ? begin / PANEL * PANEL : 0, to = sees ? rounded_up(stop, PANEL) : 0;
      float *weights = s.weights + a * step, *differences = s.differences + a * step;
      for (int r = 0; r < ROWS; r++)
        for (float* row : {weights + r * step, differences + r * step}) {
          std::memset(row, 0, from * sizeof(float));
          std::memset(row + to, 0, (key_block - to) * sizeof(float));
        }
      if (!sees) continue;
      weights_and_differences(head, i0, a, real, j0, from, stop, by_key, s);
      if (call.drops()) drop(head, i, a, j0, from, to, s);
      add_query_gradient(head, unit.part, i, real, j0, begin, stop, differences, s);
    }
    add_key_gradients(i0, rows, j0, columns, s);
    const float* x = call.relative_width ? s.relative_query : s.query;
    add_table_gradient(call.relative_keys, relative_keys.of(unit.slot, unit.part, head.h), s.differences, x, i0, rows,
                       j0, columns);
    add_table_gradient(call.relative_values, relative_values.of(unit.slot, unit.part, head.h), s.weights, s.gradient,
                       i0, rows, j0, columns);
    if (call.mask_gradient) add_mask_gradient(head, i0, count, j0, columns, s);
    add_bias_gradient(bias.of(unit.slot, unit.part, head.h), s.differences, i0, rows, j0, columns);
    add_relative_query_gradients(head, unit, i0, rows, j0, columns, s);
  }

  // Queries times the scale, dO, maximum, 1 / total and delta; rows without a key, and those after the last, take no
  // part.
  void load_queries(const Head& head, Index i0, Index count, const Scratch& s) const {
    const float scale = float(call.scale);
    const Index rows = rounded_up(count, ROWS), width = call.value_width;
    copy_rows(call.query, head.b, head.h, i0, count, call.width, scale, s.query);
    if (call.relative_width)
      copy_rows(call.relative_query, head.b, head.h, i0, count, call.relative_width, scale, s.relative_query);
    copy_rows(call.output_gradient, head.b, head.h, i0, count, width, 1.0f, s.gradient);
    const Index first = (head.b * call.heads + head.h) * call.queries + i0;
    for (Index a = 0; a < rows; a++) {
      const bool sees = a < count && call.total[first + a] != 0.0f;
      s.maximum[a] = sees ? call.maximum[first + a] : INFINITY;
      s.share[a] = sees ? 1.0f / call.total[first + a] : 0.0f;
      s.delta[a] = 0.0f;
      if (sees) {
        Vector sums = {};
        for (Index d = 0; d < width; d += LANES)
          sums += load(s.gradient + a * width + d) * load(call.output + (first + a) * width + d);
        s.delta[a] = sum(sums) - call.lse_gradient[first + a];
      } else {
        std::memset(s.gradient + a * width, 0, width * sizeof(float));
      }
    }
  }

  void weights_and_differences(const Head& head, Index i0, Index a, Index real, Index j0, Index from, Index stop,
                               const KeyStrips& by_key, const Scratch& s) const {
    const Index i = i0 + a, value_width = call.value_width, to = rounded_up(stop, PANEL);
    float *weights = s.weights + a * step, *differences = s.differences + a * step;
    const float* query = s.query + a * call.width;
    const float* x = call.relative_width ? s.relative_query + a * call.relative_width : query;
    Index next = NEVER;
    const Start start = scores_start(head, x, i, j0, from, to, Strip::step(key_block), s.strip, s.kept, next);
    Vector most[ROWS];
    scores_of(head, query, i, j0, from, to, start.at ? &start : nullptr, weights, step, most);
    if (call.looks_at_pairs()) look_at_pairs(head, i0, i, real, j0, from, stop, by_key, weights, step, most);
    Start values = {nullptr, 0};
    if (call.relative_values.rows) {
      const Band& band = call.relative_values;
      const Strip strip{
          s.value_strip, Strip::step(key_block), band, head.relative_value_panels, head.relative_values, nullptr, 0};
      next = NEVER;
      values = strip.fill(s.gradient + a * value_width, call.origin + j0 - i - band.first, from, to, s.kept, next);
    }
    by_width(value_width, [&](auto known) {
      for (Index column = from; column < to; column += PANEL) {
        Sums sums;
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
          const Vector delta = splat(call.drops() ? 0.0f : -s.delta[a + r]);
#pragma GCC unroll 8
          for (int v = 0; v < PANEL_VECTORS; v++)
            sums[r][v] = values.at ? delta + load(values.at + r * values.step + column + v * LANES) : delta;
        }
        multiply_nt<known.known>(s.gradient + a * value_width, head.panels.values + column * value_width, value_width,
                                 sums);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
          const Vector maximum = splat(s.maximum[a + r]), share = splat(s.share[a + r]);
#pragma GCC unroll 8
          for (int v = 0; v < PANEL_VECTORS; v++) {
            float* weight = weights + r * step + column + v * LANES;
            const Vector p = exponential(load(weight) - maximum) * share;
            store(weight, p);
            store(differences + r * step + column + v * LANES, call.drops() ? sums[r][v] : p * sums[r][v]);
          }
        }
      }
    });
  }

  // With dropout's factors F: the weights P become P F, and what lies in place of dS, dO . (v + RV), P (F dO . (v + RV)
  // - delta).
  void drop(const Head& head, Index i, Index a, Index j0, Index from, Index to, const Scratch& s) const {
    Dropout(call).each(head.counted(), i, ROWS, j0, from, to, [&](Index r, Index column, Vector factor) {
      float *weight = s.weights + (a + r) * step + column, *difference = s.differences + (a + r) * step + column;
      const Vector p = load(weight);
      store(difference, p * (load(difference) * factor - splat(s.delta[a + r])));
      store(weight, p * factor);
    });
  }

  // dq_i += scale * sum_j dS_ij (k_j + RK[d]), where r is q; else dr_i takes the second part.
  void add_query_gradient(const Head& head, Index part, Index i, Index real, Index j0, Index from, Index stop,
                          const float* differences, const Scratch& s) const {
    const Index width = call.width, first = (head.b * call.heads + head.h) * call.queries + i;
    if (float* const gradient = query_gradient(part)) {
      const bool whole = real == ROWS;
      float* to = whole ? gradient + first * width : s.tail;
      if (!whole) std::memset(to, 0, ROWS * width * sizeof(float));
      const float* keys = call.key.of(head.b, head.key_head, j0 + from);
      for (int r = 0; r < ROWS; r += NN_ROWS)
        multiply_nn(differences + r * step + from, step, 1, keys, call.key.row, stop - from, to + r * width, width,
                    width);
      if (call.relative_keys.rows && !call.relative_width)
        add_relative_keys(head, i, j0, from, stop, differences, to, width);
      if (!whole)
        for (Index r = 0; r < real; r++) add_row(gradient + (first + r) * width, to + r * width, 1.0f, width);
    }
    if (float* const gradient = relative_query_gradient(part)) {
      const Index relative_width = call.relative_width;
      std::memset(s.relative_tail, 0, ROWS * relative_width * sizeof(float));
      add_relative_keys(head, i, j0, from, stop, differences, s.relative_tail, relative_width);
      for (Index r = 0; r < real; r++)
        add_row(gradient + (first + r) * relative_width, s.relative_tail + r * relative_width, 1.0f, relative_width);
    }
  }

  void add_relative_keys(const Head& head, Index i, Index j0, Index from, Index stop, const float* differences,
                         float* to, Index to_step) const {
    const Band& band = call.relative_keys;
    add_band(band, head.relative_keys, differences, step, call.origin + j0 - i - band.first, from, stop, to, to_step);
  }

  // dk_j += sum_i dS_ij (scale q_i), dv_j += sum_i P_ij dO_i.
  void add_key_gradients(Index i0, Index rows, Index j0, Index columns, const Scratch& s) const {
    for (Index c = 0; c < columns; c += NN_ROWS) {
      const Index first = call.highest == -NEVER ? 0 : std::max(Index(0), j0 + c + call.origin - call.highest - i0);
      const Index end = call.lowest == NEVER ? rows : std::min(rows, j0 + c + NN_ROWS + call.origin - call.lowest - i0);
      multiply_nn(s.differences + c + first * step, 1, step, s.query + first * call.width, call.width, end - first,
                  s.key + c * call.width, call.width, call.width);
      multiply_nn(s.weights + c + first * step, 1, step, s.gradient + first * call.value_width, call.value_width,
                  end - first, s.value + c * call.value_width, call.value_width, call.value_width);
    }
  }

  // dT[t] += sum of factors[a][c] * x_a over the pairs with t = corner + c - a: one diagonal of the tile for each row.
  void add_table_gradient(const Band& band, float* sums, const float* factors, const float* x, Index i0, Index rows,
                          Index j0, Index columns) const {
    if (!sums) return;
    const Index corner = call.origin + j0 - i0 - band.first, width = band.width;
    const Index first = std::max(Index(0), corner - (rows - 1)), end = std::min(band.count, corner + columns);
    for (Index t = first; t < end; t += NN_ROWS) {
      const Index a = std::max(Index(0), corner - t - (NN_ROWS - 1)), b = std::min(rows, columns + corner - t);
      if (a < b)
        multiply_nn(factors + (t - corner + a) + a * step, 1, step + 1, x + a * width, width, b - a, sums + t * width,
                    width, width);
    }
    if (!band.clamps) return;
    for (Index a = 0; a < rows; a++) {
      const float* row = factors + a * step;
      const Index inside = std::min(std::max(a - corner, Index(0)), columns);
      const Index beyond = std::min(std::max(band.count + a - corner, inside), columns);
      if (inside > 0) add_row(sums, x + a * width, total(row, 0, inside), width);
      if (beyond < columns) add_row(sums + (band.count - 1) * width, x + a * width, total(row, beyond, columns), width);
    }
  }

  static float total(const float* row, Index from, Index stop) {
    Vector sums = {};
    for (; from + LANES <= stop; from += LANES) sums += load(row + from);
    float rest = sum(sums);
    for (; from < stop; from++) rest += row[from];
    return rest;
  }

  // db[t] += sum of dS over the diagonal t.
  void add_bias_gradient(float* sums, const float* differences, Index i0, Index rows, Index j0, Index columns) const {
    if (!sums) return;
    const Band& band = call.bias;
    const Index corner = call.origin + j0 - i0 - band.first;
    for (Index t = corner - (rows - 1); t < corner + columns; t += LANES) {
      const Index first = std::max(Index(0), corner - t - (LANES - 1)), end = std::min(rows, columns + corner - t);
      Vector diagonals = {};
      for (Index a = first; a < end; a++) diagonals += load(differences + (t - corner) + a * (step + 1));
      for (Index n = 0; n < LANES && t + n < corner + columns; n++) {
        const Index inside = std::min(std::max(t + n, Index(0)), band.count - 1);
        if (t + n == inside || band.clamps) sums[inside] += diagonals[n];
      }
    }
  }

  // dmask_ij += dS_ij.
  void add_mask_gradient(const Head& head, Index i0, Index count, Index j0, Index columns, const Scratch& s) const {
    float* to = call.mask_gradient + head.b * call.mask_gradient_batch + head.h * call.mask_gradient_head +
                i0 * call.mask_gradient_query + j0 * call.mask_gradient_key;
    for (Index a = 0; a < count; a++)
      for (Index c = 0; c < columns; c++)
        to[a * call.mask_gradient_query + c * call.mask_gradient_key] += s.differences[a * step + c];
  }

  // dk_j += scale * sum_i dS_ij RQ[d]; dRQ[d] += scale * sum over its diagonal of dS_ij k_j. The scale comes last.
  void add_relative_query_gradients(const Head& head, Unit unit, Index i0, Index rows, Index j0, Index columns,
                                    const Scratch& s) const {
    const Band& band = call.relative_queries;
    if (!band.rows) return;
    const Index corner = call.origin + j0 - i0 - band.first, width = band.width;
    for (Index c = 0; c < columns; c += NN_ROWS) {
      const Index first = std::max(Index(0), corner + c - (rows - 1)), end = std::min(band.count, corner + c + NN_ROWS);
      if (first < end)
        multiply_nn(s.differences + (corner + c - first) * step + c, step + 1, -step,
                    head.relative_queries + first * width, width, end - first, s.key_by_rows + c * width, width, width);
    }
    const float* keys = call.key.of(head.b, head.key_head, j0);
    float* sums = relative_queries.of(unit.slot, unit.part, head.h);
    if (sums) {
      const Index first = std::max(Index(0), corner - (rows - 1)), end = std::min(band.count, corner + columns);
      for (Index t = first; t < end; t += NN_ROWS) {
        const Index a = std::max(Index(0), t - corner), b = std::min(columns, t - corner + NN_ROWS - 1 + rows);
        if (a < b)
          multiply_nn(s.differences + (corner - t + a) * step + a, -step, step + 1, keys + a * call.key.row,
                      call.key.row, b - a, sums + t * width, width, width);
      }
    }
    if (!band.clamps) return;
    for (Index c = 0; c < columns; c++) {
      float before = 0.0f, beyond = 0.0f;  // over the queries so far after the key, and so far before it
      for (Index a = std::max(Index(0), corner + c + 1); a < rows; a++) before += s.differences[a * step + c];
      for (Index a = std::min(rows, corner + c - band.count + 1) - 1; a >= 0; a--)
        beyond += s.differences[a * step + c];
      const float* last = head.relative_queries + (band.count - 1) * width;
      add_row(s.key_by_rows + c * width, head.relative_queries, before, width);
      add_row(s.key_by_rows + c * width, last, beyond, width);
      if (!sums) continue;
      add_row(sums, keys + c * call.key.row, before, width);
      add_row(sums + (band.count - 1) * width, keys + c * call.key.row, beyond, width);
    }
  }
};

}  // namespace RELATTN_SET

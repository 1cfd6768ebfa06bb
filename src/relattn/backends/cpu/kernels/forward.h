// The forward pass: a unit of work is a block of queries of one head. It takes the keys one block at a time.
#pragma once
#include "explicit_axes.h"

namespace RELATTN_SET {

constexpr Index MOST_GROUPS = 64;  // of ROWS queries in a block

// Where a group sees no key of a block of a mask, its strip begins anew: no panel of offsets is met on both sides.
static_assert(MASK_BLOCK >= ROWS + PANEL);

struct Forward {
  const Call& call;
  const Packed& packed;
  const Index query_block, key_block;
  const Index step;    // between rows of weights
  const Index blocks;  // of queries, for each head

  Forward(const Call& c, const Packed& p)
      : call(c),
        packed(p),
        query_block(std::min(rounded_up(c.query_block, ROWS), MOST_GROUPS * ROWS)),
        key_block(rounded_up(c.key_block, PANEL)),
        step(key_block + 2 * MARGIN),
        blocks((c.queries + query_block - 1) / query_block) {}

  Index units() const { return call.batch * call.heads * blocks; }

  Index scratch() const {
    const Index rows = std::min(rounded_up(call.queries, ROWS), query_block);
    return room_for(rows * call.value_width, rows * Strip::CARRIED, rounded_up(rows, LANES), rounded_up(rows, LANES),
                    ROWS * step, rounded_size(), Strip::size(key_block), KeyStrips::size(call, rows, key_block)) +
           Queries::size(call, rows) + RelativeQueries::size(call, rows) + ExplicitAxes::size(call, most());
  }

  // The last block of queries comes first: under causality it sees the most keys.
  void run(Index unit, float* scratch) const {
    const Index n = unit / blocks, block = blocks - 1 - unit % blocks;
    const Head head(call, packed, n / call.heads, n % call.heads);
    const Index i0 = block * query_block, count = std::min(query_block, call.queries - i0);
    block_of_queries(head, i0, count, scratch);
  }

 private:
  Index most() const { return std::max(key_block, query_block); }
  Index rounded_size() const { return call.takes_pairs() ? ROWS * step / 2 : 0; }

  void block_of_queries(const Head& head, Index i0, Index count, float* scratch) const {
    const Index rows = rounded_up(count, ROWS), groups = rows / ROWS;
    const Index value_width = call.value_width;
    const Queries query(call, rows, scratch);
    float* output = next_part(scratch, rows * value_width);
    float* carried = next_part(scratch, rows * Strip::CARRIED);
    float* maximum = next_part(scratch, rounded_up(rows, LANES));  // so that what follows begins at a whole vector
    float* total = next_part(scratch, rounded_up(rows, LANES));
    float* weights = next_part(scratch, ROWS * step);  // with MARGIN columns more on both sides of every row
    BFloat16* rounded =
        reinterpret_cast<BFloat16*>(next_part(scratch, rounded_size())) + MARGIN;  // weights in bfloat16
    float* strip = next_part(scratch, Strip::size(key_block));
    float* key_strips = next_part(scratch, KeyStrips::size(call, rows, key_block));
    const RelativeQueries relative(head, i0, count, rows, query, scratch);
    const ExplicitAxes axes(head, most(), scratch);
    const bool is_explicit = call.sequence.positions.are_explicit();

    query.load(head, i0, count);
    std::memset(output, 0, rows * value_width * sizeof(float));
    for (Index a = 0; a < rows; a++) maximum[a] = -INFINITY, total[a] = 0.0f;
    Index next[MOST_GROUPS];
    std::fill(next, next + groups, UNLIMITED);

    const bool looks_up = call.first_explicit() < call.axes();  // then blocks lie as those of the backward pass
    const Index grain = looks_up ? key_block : PANEL, end = call.end_key(i0, count);
    for (Index j0 = call.first_key(i0) / grain * grain; j0 < end; j0 += key_block) {
      const Index columns = std::min(key_block, (looks_up ? call.keys : end) - j0);
      if (!Visible(call, head.b, head.h, i0, count).sees(j0, columns)) continue;
      const KeyStrips by_key = axes.key_strips(i0, count, j0, columns, key_strips);
      for (Index g = 0; g < groups; g++) {
        const Index a = g * ROWS, i = i0 + a, real = std::min(Index(ROWS), count - a);
        const VisibleColumns visible = Visible(call, head.b, head.h, i, real).keys(j0, columns);
        const Index begin = std::max(call.first_key(i) - j0, visible.columns.from);
        const Index stop = std::min(call.end_key(i, real) - j0, visible.columns.stop);
        if (stop <= begin) continue;
        const Index from = begin / PANEL * PANEL, to = rounded_up(stop, PANEL);
        Start start = {nullptr, 0};
        if (!is_explicit)
          start = scores_start(head, relative.operand(a).first(real), i, j0, from, to, Strip::step(key_block), strip,
                               carried + a * Strip::CARRIED, next[g]);
        start = axes.scores_start(start, relative, a, i, real, j0, {from, stop});
        if (by_key.at) start = by_key.add_to(start, a, real, from, to, weights + MARGIN, step);
        Vector most[ROWS];
        scores_of(head, query.of(call, a).first(real), i, j0, from, to, start, weights + MARGIN, step, most);
        if (call.changes_scores() || !visible.whole)
          apply_masks(head, i, real, j0, from, stop, weights + MARGIN, step, nullptr, most);
        online_softmax(weights + MARGIN, real, from, to, most, maximum + a, total + a, output + a * value_width);
        if (call.drops()) drop(head, weights + MARGIN, i, real, j0, from, to);
        if (head.value_pairs) round_rows(weights + MARGIN, step, real, from, to, rounded);
        add_values(head, weights + MARGIN, rounded, i, real, j0, begin, stop, output + a * value_width);
        axes.add_values(weights + MARGIN, step, i, real, j0, {begin, stop}, output + a * value_width);
      }
    }
    for (Index a = 0; a < count; a++) write(head, i0 + a, maximum[a], total[a], output + a * value_width);
  }

  // Scores become weights e^(score - maximum), with the largest score so far. Sums against an earlier maximum shrink.
  void online_softmax(float* scores, Index real, Index from, Index to, const Vector (&most)[ROWS], float* maximum,
                      float* total, float* output) const {
    for (Index r = 0; r < real; r++) {
      const float before = maximum[r], now = std::max(before, largest(most[r]));
      const float finite = now == -INFINITY ? 0.0f : now;
      float* row = scores + r * step;
      if (call.sequence.relative_values.rows) {  // whose diagonals begin and end beside these columns
        std::memset(row + from - NN_ROWS, 0, NN_ROWS * sizeof(float));
        std::memset(row + to, 0, NN_ROWS * sizeof(float));
      }
      Vector even = {}, odd = {};
      for (Index c = from; c < to; c += 2 * LANES) {
        const Vector p = exponential(load(row + c) - splat(finite)),
                     q = exponential(load(row + c + LANES) - splat(finite));
        store(row + c, p), store(row + c + LANES, q);
        even += p, odd += q;
      }
      if (before != now && before != -INFINITY) {  // else there is nothing to shrink
        const float shrunk = std::exp(before - finite);
        total[r] *= shrunk;
        for (Index d = 0; d < call.value_width; d += LANES)
          store(output + r * call.value_width + d, load(output + r * call.value_width + d) * splat(shrunk));
      }
      total[r] += sum(even + odd);
      maximum[r] = now;
    }
  }

  void drop(const Head& head, float* weights, Index i, Index real, Index j0, Index from, Index to) const {
    Dropout(call).each(head.b, head.h, i, real, j0, from, to, [&](Index r, Index column, Vector factor) {
      float* weight = weights + r * step + column;
      store(weight, load(weight) * factor);
    });
  }

  // output_r += sum_c weight[r][c] * (v_c + RV[d]). rounded: the weights in bfloat16, where values are pairs.
  void add_values(const Head& head, const float* weights, const BFloat16* rounded, Index i, Index real, Index j0,
                  Index from, Index stop, float* output) const {
    const Index width = call.value_width;
    if (DOTS && head.value_pairs) {
      const Index even = from / 2 * 2;
      const BFloat16x2* values = head.value_pairs + (j0 + even) / 2 * width;
      for (Index r = 0; r < real; r += NN_ROWS)
        multiply_nn(rounded + r * step + even, step, 2, values, width, (stop - even + 1) / 2, output + r * width, width,
                    width);
    } else {
      const float* values = call.value.of(head.b, head.key_head, j0 + from);
      for (Index r = 0; r < real; r += NN_ROWS)
        multiply_nn(weights + r * step + from, step, 1, values, call.value.row, stop - from, output + r * width, width,
                    width);
    }
    const Table& table = head.sequence().relative_values;
    if (table.rows && !call.sequence.positions.are_explicit())
      add_band(table, weights, rounded, step, call.origin + j0 - i - table.band->first, from, stop, output, width);
  }

  void write(const Head& head, Index i, float maximum, float total, const float* output) const {
    const Index row = (head.b * call.heads + head.h) * call.queries + i, width = call.value_width;
    const Vector factor = splat(call.finish_row(row, maximum, total));
    for (Index d = 0; d < width; d += LANES) store(call.output + row * width + d, load(output + d) * factor);
  }
};

}  // namespace RELATTN_SET

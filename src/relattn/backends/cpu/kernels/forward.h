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
        query_block(std::min({rounded_up(c.query_block, ROWS), rounded_up(c.queries, ROWS), MOST_GROUPS * ROWS})),
        key_block(rounded_up(c.key_block, PANEL)),
        step(key_block + 2 * MARGIN),
        blocks((c.queries + query_block - 1) / query_block) {}

  Index units() const { return call.batch * call.heads * blocks; }

  struct Scratch {
    BlockQueries queries;
    float *output, *carried, *maximum, *total;
    float* weights;       // a group's, with MARGIN columns more on both sides of every row
    BFloat16x2* rounded;  // the same in bfloat16
    float* strip;
    KeyStrips key_strips;
    ExplicitScratch of_axes;

    Scratch(const Forward& pass, Workspace& at)
        : queries(pass.call, pass.query_block, at),
          output(at.next(pass.query_block * pass.call.value_width)),
          carried(at.next(pass.query_block * Strip::CARRIED)),
          maximum(at.next(rounded_up(pass.query_block, LANES))),  // so that what follows begins at a whole vector
          total(at.next(rounded_up(pass.query_block, LANES))),
          weights(at.next(ROWS * pass.step, MARGIN)),
          rounded(at.next<BFloat16x2>(pass.call.takes_pairs() ? ROWS * pass.step / 2 : 0, MARGIN / 2)),
          strip(at.next(Strip::size(pass.key_block))),
          key_strips(pass.call, pass.query_block, pass.key_block, at),
          of_axes(pass.call, std::max(pass.key_block, pass.query_block), at) {}
  };

  // The last block of queries comes first: under causality it sees the most keys.
  void run(Index unit, float* scratch) const {
    const Index n = unit / blocks, block = blocks - 1 - unit % blocks;
    const Head head(call, packed, n / call.heads, n % call.heads);
    const Index i0 = block * query_block, count = std::min(query_block, call.queries - i0);
    Workspace at(scratch);
    block_of_queries(head, i0, count, Scratch(*this, at));
  }

 private:
  void block_of_queries(const Head& head, Index i0, Index count, const Scratch& s) const {
    const Index rows = rounded_up(count, ROWS), groups = rows / ROWS;
    const Index value_width = call.value_width;
    BFloat16* const rounded = reinterpret_cast<BFloat16*>(s.rounded);
    const ExplicitAxes axes(head, s.of_axes);

    s.queries.load(head, i0, count);
    std::memset(s.output, 0, rows * value_width * sizeof(float));
    for (Index a = 0; a < rows; a++) s.maximum[a] = -INFINITY, s.total[a] = 0.0f;
    Index next[MOST_GROUPS];
    std::fill(next, next + groups, UNLIMITED);

    const bool looks_up = call.first_explicit() < call.axes();  // then blocks lie as those of the backward pass
    const Index grain = looks_up ? key_block : PANEL, end = call.end_key(i0, count);
    for (Index j0 = call.first_key(i0) / grain * grain; j0 < end; j0 += key_block) {
      const Index columns = std::min(key_block, (looks_up ? call.keys : end) - j0);
      if (!Visible(call, head.b, head.h, i0, count).sees(j0, columns)) continue;
      axes.fill(s.key_strips, i0, count, j0, columns);
      for (Index n = 0; n < groups; n++) {
        const Group g(call, head.b, head.h, i0, count, n * ROWS, j0, columns);
        if (!g.sees()) continue;
        float* const output = s.output + g.a * value_width;
        Start start = scores_start(head, s.queries.relative[0].of(g.a, g.real), g, Strip::step(key_block), s.strip,
                                   s.carried + g.a * Strip::CARRIED, next[n]);
        start = axes.scores_start(start, s.queries, g);
        if (s.key_strips.at) start = s.key_strips.add_to(start, g, s.weights, step);
        Vector most[ROWS];
        scores_of(head, s.queries.query.of(g.a, g.real), g, start, s.weights, step, most);
        if (call.changes_scores() || !g.whole) apply_masks(head, g, s.weights, step, nullptr, most);
        online_softmax(s.weights, g, most, s.maximum + g.a, s.total + g.a, output);
        if (call.drops()) drop(head, s.weights, g);
        if (rounded) round_rows(s.weights, step, g, rounded);
        add_values(head, s.weights, rounded, g, output);
        axes.add_values(s.weights, step, g, output);
      }
    }
    for (Index a = 0; a < count; a++) write(head, i0 + a, s.maximum[a], s.total[a], s.output + a * value_width);
  }

  // Scores become weights e^(score - maximum), with the largest score so far. Sums against an earlier maximum shrink.
  void online_softmax(float* scores, const Group& g, const Vector (&most)[ROWS], float* maximum, float* total,
                      float* output) const {
    for (Index r = 0; r < g.real; r++) {
      const float before = maximum[r], now = std::max(before, largest(most[r]));
      const float finite = now == -INFINITY ? 0.0f : now;
      float* row = scores + r * step;
      if (call.sequence.relative_values.rows) {  // whose diagonals begin and end beside these columns
        std::memset(row + g.from - NN_ROWS, 0, NN_ROWS * sizeof(float));
        std::memset(row + g.to, 0, NN_ROWS * sizeof(float));
      }
      Vector even = {}, odd = {};
      for (Index c = g.from; c < g.to; c += 2 * LANES) {
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

  void drop(const Head& head, float* weights, const Group& g) const {
    Dropout(call).each(head.b, head.h, g.i, g.real, g.j0, g.from, g.to, [&](Index r, Index column, Vector factor) {
      float* weight = weights + r * step + column;
      store(weight, load(weight) * factor);
    });
  }

  // output_r += sum_c weight[r][c] * (v_c + RV[d]). rounded: the weights in bfloat16, where values are pairs.
  void add_values(const Head& head, const float* weights, const BFloat16* rounded, const Group& g,
                  float* output) const {
    const Index width = call.value_width;
    if (DOTS && head.value_pairs) {
      const Index even = g.begin / 2 * 2;
      const BFloat16x2* values = head.value_pairs + (g.j0 + even) / 2 * width;
      for (Index r = 0; r < g.real; r += NN_ROWS)
        multiply_nn(rounded + r * step + even, step, 2, values, width, (g.stop - even + 1) / 2, output + r * width,
                    width, width);
    } else {
      const float* values = call.value.of(head.b, head.key_head, g.j0 + g.begin);
      for (Index r = 0; r < g.real; r += NN_ROWS)
        multiply_nn(weights + r * step + g.begin, step, 1, values, call.value.row, g.stop - g.begin, output + r * width,
                    width, width);
    }
    const Table& table = head.sequence().relative_values;
    if (table.rows && !call.sequence.positions.are_explicit()) add_band(table, g, weights, rounded, step, output);
  }

  void write(const Head& head, Index i, float maximum, float total, const float* output) const {
    const Index row = (head.b * call.heads + head.h) * call.queries + i, width = call.value_width;
    const Vector factor = splat(call.finish_row(row, maximum, total));
    for (Index d = 0; d < width; d += LANES) store(call.output + row * width + d, load(output + d) * factor);
  }
};

}  // namespace RELATTN_SET

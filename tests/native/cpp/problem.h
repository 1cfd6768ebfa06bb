// What the equation is given: a problem, whose pairs have an offset on every axis.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace equation {

using Index = int64_t;
using Floats = std::vector<float>;

// Rows for the offsets first, first + 1, ..., [heads, count, width]; none where count is 0.
struct Table {
  Index heads = 1, first = 0, count = 0, width = 1;
  bool clamps = false;
  Floats rows;

  // Where the row of offset d begins; -1 where nothing holds.
  Index row(Index head, Index d) const {
    const Index t = d - first, inside = std::min(std::max(t, Index(0)), count - 1);
    if (count == 0 || (t != inside && !clamps)) return -1;
    return ((heads == 1 ? 0 : head) * count + inside) * width;
  }
};

// What the offsets on one axis add.
struct Axis {
  Index relative_width = 0;  // of r; 0: r is q
  Floats relative_query;     // [B, heads, L, width]
  Table relative_keys, relative_queries, relative_values, bias;
  // Where queries and keys stand if they are explicit, [B, L] or for the whole batch [L]; else both are contiguous.
  std::vector<Index> query_positions, key_positions;

  bool is_explicit() const { return !query_positions.empty(); }
};

struct Problem {
  Index batch = 1, heads = 2, key_heads = 2, queries = 0, keys = 0;
  Index width = 16, value_width = 16;
  Index origin = 0, lowest = INT64_MIN / 4, highest = -(INT64_MIN / 4);  // of the sequence alone
  std::vector<Axis> axes = std::vector<Axis>(1);  // the sequence, and others, whose positions are explicit
  double scale = 1.0, keep_probability = 1.0;
  bool in_bfloat16 = false;  // all numbers of query, key, value, tables and the output's gradient are bfloat16's
  double rounded = 0.0;      // how far a weight or a dS in a product may be off for it, relative to it
  uint64_t seed = 0;
  Floats query, key, value;                         // [B, heads, L, width]
  std::vector<uint8_t> key_mask;                    // [B, Lk]
  std::vector<Index> query_segments, key_segments;  // [B, Lq], [B, Lk]
  std::array<Index, 4> mask_steps = {};             // of both masks below, over [B, Hq, Lq, Lk]
  std::vector<uint8_t> pair_mask;
  Floats added_mask;
  double softcap = 0.0;                  // 0 for none
  Floats key_bias, key_shift;            // a [B, Hq, Lk] and c [B, Hq, Lq]
  Floats output_gradient, lse_gradient;  // [B, Hq, Lq, Dv], [B, Hq, Lq]

  Axis& sequence() { return axes[0]; }
  const Axis& sequence() const { return axes[0]; }

  // Key position - query position.
  Index offset(const Axis& axis, Index b, Index i, Index j) const {
    if (!axis.is_explicit()) return origin + j - i;
    return axis.key_positions[b * positions_step(axis.key_positions, keys) + j] -
           axis.query_positions[b * positions_step(axis.query_positions, queries) + i];
  }
  // From a batch element's positions to the next one's; 0 where all share them.
  static Index positions_step(const std::vector<Index>& positions, Index length) {
    return Index(positions.size()) == length ? 0 : length;
  }
  Index mask_at(Index b, Index h, Index i, Index j) const {
    return b * mask_steps[0] + h * mask_steps[1] + i * mask_steps[2] + j * mask_steps[3];
  }
  bool sees(Index b, Index h, Index i, Index j) const {
    const Index d = offset(sequence(), b, i, j);
    if (d < lowest || d > highest) return false;
    if (!key_mask.empty() && !key_mask[b * keys + j]) return false;
    if (!key_segments.empty() && query_segments[b * queries + i] != key_segments[b * keys + j]) return false;
    if (!pair_mask.empty() && !pair_mask[mask_at(b, h, i, j)]) return false;
    return added_mask.empty() || added_mask[mask_at(b, h, i, j)] != -INFINITY;
  }
};

}  // namespace equation

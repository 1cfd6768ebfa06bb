// A problem laid out in memory as the call that the kernels take, and what they write.
#pragma once
#include <cstring>

#include "called.h"
#include "compare.h"

using equation::Axis;
using equation::Problem;
using equation::Table;

// How a problem is given to the kernels.
struct Layout {
  bool few = false;          // by the kernels of few queries, which have no backward pass
  Index element_type = 0;    // keys and values in float, 1 bfloat16 or 2 float16
  bool wide_tables = false;  // tables are not said to be bfloat16, though they may be
  bool interleaved = false;  // [B, L, heads, width] in memory
  bool blocks = false;       // what blocks of keys have to see is given, too
  Index query_block = 20, key_block = 40, threads = 1;
};

inline uint16_t bits_of_bfloat16(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return uint16_t(bits >> 16U);
}
inline uint16_t bits_of_half(float number) {
  const auto half = static_cast<_Float16>(number);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

// [B, heads, L, width] as the layout wants it.
struct CallerTensor {
  Floats floats;
  std::vector<uint16_t> narrow;
  called::Rows rows = {};

  CallerTensor(const Floats& x, Index batch, Index heads, Index length, Index width, bool interleaved,
               Index element_type) {
    floats.resize(x.size());
    rows.batch = heads * length * width;
    rows.head = interleaved ? width : length * width, rows.row = interleaved ? heads * width : width;
    for (Index b = 0; b < batch; b++)
      for (Index h = 0; h < heads; h++)
        for (Index i = 0; i < length; i++)
          for (Index d = 0; d < width; d++)
            floats[b * rows.batch + h * rows.head + i * rows.row + d] = x[((b * heads + h) * length + i) * width + d];
    rows.at = floats.data();
    if (!element_type) return;
    for (const float number : floats)
      narrow.push_back(element_type == 1 ? bits_of_bfloat16(number) : bits_of_half(number));
    rows.at = reinterpret_cast<const float*>(narrow.data());
  }
};

inline Written zeros_like(const Floats& like) { return {Index(like.size()), 0.0f}; }

inline called::Band band(const Table& table, bool in_bfloat16, Written& gradient) {
  if (table.count == 0) return {};
  called::Band band = {};
  band.rows = table.rows.data(), band.gradient = gradient.at();
  band.heads = table.heads, band.head = table.heads == 1 ? 0 : table.count * table.width;
  band.count = table.count, band.first = table.first, band.width = table.width, band.clamps = table.clamps;
  band.in_bfloat16 = in_bfloat16;
  return band;
}

// lowest, highest: limits of the offsets on this axis.
inline called::Positions positions(const Problem& p, const Axis& axis, Index lowest, Index highest) {
  if (!axis.is_explicit()) return {nullptr, nullptr, 0, 0, called::UNLIMITED, -called::UNLIMITED};
  return {axis.query_positions.data(),
          axis.key_positions.data(),
          Problem::positions_step(axis.query_positions, p.queries),
          Problem::positions_step(axis.key_positions, p.keys),
          lowest,
          highest};
}

// What stands on an axis, and its gradients.
struct LaidAxis {
  CallerTensor relative_query;
  Written by_relative_query, by_relative_keys, by_relative_queries, by_relative_values, by_bias;

  LaidAxis(const Problem& p, const Axis& axis, bool interleaved)
      : relative_query(axis.relative_query, p.batch, p.heads, p.queries, axis.relative_width, interleaved, false),
        by_relative_query(zeros_like(axis.relative_query)),
        by_relative_keys(zeros_like(axis.relative_keys.rows)),
        by_relative_queries(zeros_like(axis.relative_queries.rows)),
        by_relative_values(zeros_like(axis.relative_values.rows)),
        by_bias(zeros_like(axis.bias.rows)) {}

  called::Axis given(const Problem& p, const Axis& axis, bool in_bfloat16, Index lowest, Index highest) {
    called::Axis to = {};
    to.relative_keys = band(axis.relative_keys, in_bfloat16, by_relative_keys);
    to.relative_queries = band(axis.relative_queries, in_bfloat16, by_relative_queries);
    to.relative_values = band(axis.relative_values, in_bfloat16, by_relative_values);
    to.bias = band(axis.bias, in_bfloat16, by_bias);
    to.positions = positions(p, axis, lowest, highest);
    if (!axis.relative_width) return to;
    to.relative_query = relative_query.rows, to.relative_width = axis.relative_width;
    to.relative_query_gradient = by_relative_query.at();
    return to;
  }
};

// What blocks of keys, and of queries and keys, have to see, found from every pair of theirs.
struct Blocks {
  std::vector<Index> key_ids;
  std::vector<uint8_t> keys, pairs;
  Index queries_count, keys_count;

  explicit Blocks(const Problem& p) : queries_count(blocks_of(p.queries)), keys_count(blocks_of(p.keys)) {
    for (Index b = 0; b < p.batch; b++)
      for (Index n = 0; n < keys_count; n++) {
        const Index first = b * p.keys + n * called::MASK_BLOCK, end = b * p.keys + end_of(n, p.keys);
        if (!p.key_segments.empty()) {
          const auto [low, high] = std::minmax_element(&p.key_segments[first], p.key_segments.data() + end);
          key_ids.push_back(*low), key_ids.push_back(*high);
        }
        if (!p.key_mask.empty()) keys.push_back(told(&p.key_mask[first], p.key_mask.data() + end));
      }
    if (p.pair_mask.empty() && p.added_mask.empty()) return;
    for (Index b = 0; b < p.batch; b++)
      for (Index h = 0; h < p.heads; h++)
        for (Index m = 0; m < queries_count; m++)
          for (Index n = 0; n < keys_count; n++) pairs.push_back(of_pairs(p, b, h, m, n));
  }

 private:
  static Index blocks_of(Index length) { return (length + called::MASK_BLOCK - 1) / called::MASK_BLOCK; }
  static Index end_of(Index block, Index length) { return std::min((block + 1) * called::MASK_BLOCK, length); }
  static uint8_t told(const uint8_t* first, const uint8_t* end) {
    const bool none = std::all_of(first, end, [](uint8_t one) { return !one; });
    return none                                                       ? called::NOTHING
           : std::all_of(first, end, [](uint8_t one) { return one; }) ? called::EVERYTHING
                                                                      : called::LOOK;
  }
  static uint8_t of_pairs(const Problem& p, Index b, Index h, Index m, Index n) {
    std::vector<uint8_t> attends;
    for (Index i = m * called::MASK_BLOCK; i < end_of(m, p.queries); i++)
      for (Index j = n * called::MASK_BLOCK; j < end_of(n, p.keys); j++) {
        const Index at = p.mask_at(b, h, i, j);
        attends.push_back(p.pair_mask.empty() ? p.added_mask[at] != -INFINITY : p.pair_mask[at]);
      }
    const uint8_t all = told(attends.data(), attends.data() + attends.size());
    return p.pair_mask.empty() && all == called::EVERYTHING ? called::LOOK : all;
  }
};

class Laid {
 public:
  const Index rows;
  Written output, lse, maximum, total;
  Written by_query, by_key, by_value, by_mask, by_key_bias;
  std::vector<LaidAxis> axes;
  Call call = {};

  Laid(const Problem& problem, const Layout& wanted)
      : rows(problem.batch * problem.heads * problem.queries),
        output(rows * problem.value_width, NAN),
        lse(rows, NAN),
        maximum(rows, NAN),
        total(rows, NAN),
        by_query(zeros_like(problem.query)),
        by_key(zeros_like(problem.key)),
        by_value(zeros_like(problem.value)),
        by_mask(zeros_like(problem.added_mask)),
        by_key_bias(zeros_like(problem.key_bias)),
        p(problem),
        layout(wanted),
        blocks(problem),
        query(caller_tensor(p.query, p.heads, p.queries, p.width, 0)),
        key(caller_tensor(p.key, p.key_heads, p.keys, p.width, layout.element_type)),
        value(caller_tensor(p.value, p.key_heads, p.keys, p.value_width, layout.element_type)),
        output_gradient(caller_tensor(p.output_gradient, p.heads, p.queries, p.value_width, 0)) {
    give_sizes();
    give_axes();
    give_masks();
    call.query = query.rows, call.key = key.rows, call.value = value.rows;
    call.scale = p.scale, call.softcap = p.softcap, call.keep_probability = p.keep_probability,
    call.seed = Index(p.seed);
    call.whole_heads = p.heads;
    call.output = output.at(), call.lse = lse.at(), call.maximum = maximum.at(), call.total = total.at();
    call.query_block = layout.query_block, call.key_block = layout.key_block;
    call.threads = layout.threads, call.element_type = layout.element_type;
    call.in_bfloat16 = p.in_bfloat16;
  }
  Laid(const Laid&) = delete;  // the call points into it
  Laid& operator=(const Laid&) = delete;

  void ask_for_gradients() {
    call.output_gradient = output_gradient.rows, call.lse_gradient = p.lse_gradient.data();
    call.query_gradient = by_query.at(), call.key_gradient = by_key.at(), call.value_gradient = by_value.at();
    if (call.added_mask) {
      call.mask_gradient = by_mask.at();
      call.mask_gradient_batch = p.mask_steps[0], call.mask_gradient_head = p.mask_steps[1];
      call.mask_gradient_query = p.mask_steps[2], call.mask_gradient_key = p.mask_steps[3];
    }
    if (call.key_bias.at) call.key_bias_gradient = by_key_bias.at();
  }

 private:
  const Problem& p;
  const Layout& layout;
  const Blocks blocks;
  const CallerTensor query, key, value, output_gradient;
  std::vector<called::Axis> others;

  CallerTensor caller_tensor(const Floats& x, Index heads, Index length, Index width, Index as) const {
    return {x, p.batch, heads, length, width, layout.interleaved, as};
  }

  void give_sizes() {
    call.batch = p.batch, call.heads = p.heads, call.key_heads = p.key_heads;
    call.queries = p.queries, call.keys = p.keys;
    call.width = p.width, call.value_width = p.value_width;
    call.origin = p.origin, call.lowest = p.lowest, call.highest = p.highest;
  }

  // Limits stand with the sequence's positions where these are explicit; the call's own are then none.
  void give_axes() {
    for (const Axis& axis : p.axes) axes.emplace_back(p, axis, layout.interleaved);
    const bool in_bfloat16 = p.in_bfloat16 && !layout.wide_tables;
    call.sequence = axes[0].given(p, p.sequence(), in_bfloat16, p.lowest, p.highest);
    if (p.sequence().is_explicit()) call.lowest = called::UNLIMITED, call.highest = -called::UNLIMITED;
    for (size_t n = 1; n < p.axes.size(); n++)
      others.push_back(axes[n].given(p, p.axes[n], in_bfloat16, called::UNLIMITED, -called::UNLIMITED));
    call.others = others.data(), call.others_count = Index(others.size());
  }

  void give_masks() {
    call.key_mask = p.key_mask.empty() ? nullptr : p.key_mask.data();
    if (!p.key_segments.empty())
      call.query_segments = p.query_segments.data(), call.key_segments = p.key_segments.data();
    call.pair_mask = p.pair_mask.empty() ? nullptr : p.pair_mask.data();
    call.added_mask = p.added_mask.empty() ? nullptr : p.added_mask.data();
    call.mask_batch = p.mask_steps[0], call.mask_head = p.mask_steps[1];
    call.mask_query = p.mask_steps[2], call.mask_key = p.mask_steps[3];
    if (layout.blocks) give_blocks();
    if (!p.key_bias.empty())
      call.key_bias = {
          p.key_bias.data(), p.key_shift.data(), p.heads * p.keys, p.keys, p.heads * p.queries, p.queries, 1};
  }

  void give_blocks() {
    const Index queries = blocks.queries_count, keys = blocks.keys_count;
    if (call.key_segments) call.key_ids = blocks.key_ids.data();
    if (call.key_mask) call.key_mask_blocks = blocks.keys.data();
    if (!call.pair_mask && !call.added_mask) return;
    call.pair_blocks = blocks.pairs.data();
    call.pair_blocks_batch = p.heads * queries * keys, call.pair_blocks_head = queries * keys;
    call.pair_blocks_query = keys, call.pair_blocks_key = 1;
  }
};

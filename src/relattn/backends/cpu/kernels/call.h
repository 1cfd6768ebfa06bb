// One call as numbers and pointers, in the order in which layout.py packs them. All fields are 8 bytes wide.
//
// S_ij  = scale * (q_i . k_j + sum_c (r_c,i . RK_c[d_c] + RQ_c[d_c] . k_j)) + sum_c b_c[d_c]
// S'_ij = softcap * tanh(S_ij / softcap) + a_j - c_i + mask
// O_i   = sum_j softmax(S')_ij * (v_j + sum_c RV_c[d_c])
//
// d_c is key position - query position on axis c. Axis 0 is the sequence, where d = origin + j - i unless it is
// explicit.
#pragma once
#include <algorithm>

#include "pairs.h"

namespace RELATTN_SET {

constexpr Index UNLIMITED = INT64_MIN / 4;  // a limit beyond every offset; -UNLIMITED on the other side
constexpr Index MOST_AXES = 8;              // the sequence among them
constexpr Index MASK_BLOCK = 64;            // queries and keys of a block of a mask

// No pair of a block may attend; some may; all may, and nothing is added to their scores.
constexpr int NOTHING = 0, LOOK = 1, EVERYTHING = 2;

// A tensor [B, H, L, width] of floats whose last axis is contiguous; steps in numbers.
struct Rows {
  const float* at;
  Index batch, head, row;

  const float* of(Index b, Index h, Index i) const { return elements<float>(b, h, i); }
  template <class Element>
  const Element* elements(Index b, Index h, Index i) const {
    return reinterpret_cast<const Element*>(at) + b * batch + h * head + i * row;
  }
};

INLINE Index wrapped_sum(Index a, Index b) { return Index(uint64_t(a) + uint64_t(b)); }
INLINE Index wrapped_difference(Index a, Index b) { return Index(uint64_t(a) - uint64_t(b)); }

constexpr int32_t NO_ROW = -1;  // beyond a table that holds nothing there

// A table: `count` contiguous rows for the offsets first, first + 1, .... head is 0 where one table serves all heads.
struct Band {
  const float* rows;
  float* gradient;  // [heads, count, width], null where it is not wanted
  Index heads, head, count, first, width;
  Index clamps;       // 1: beyond the table its edge row holds; 0: nothing does
  Index in_bfloat16;  // 1: its numbers, and those of its relative query, are bfloat16's

  const float* at(Index h, Index t) const { return rows + h * head + t * width; }
  // The row of an offset, or NO_ROW.
  Index row_of(Index offset) const {
    const Index t = wrapped_difference(offset, first), inside = std::min(std::max(t, Index(0)), count - 1);
    return t == inside || clamps ? inside : NO_ROW;
  }
};

// The range of some positions or ids, both ends included.
struct Range {
  Index least, most;

  static Range of(const Index* numbers, Index count) {
    Range range = {numbers[0], numbers[0]};
    for (Index n = 1; n < count; n++) range = {std::min(range.least, numbers[n]), std::max(range.most, numbers[n])};
    return range;
  }
  bool has(Index number) const { return number >= least && number <= most; }
  bool meets(const Range& other) const { return least <= other.most && most >= other.least; }
  bool one() const { return least == most; }
};

// The explicit positions of queries and keys: [B, Lq] and [B, Lk], with a step of 0 where the batch shares them; null
// on a sequence of contiguous positions. Every other axis has them.
struct Positions {
  const Index *query, *key;
  Index query_batch, key_batch;
  Index lowest, highest;  // limits of key position - query position; then the call itself has none

  bool are_explicit() const { return query; }
  bool limited() const { return are_explicit() && (lowest != UNLIMITED || highest != -UNLIMITED); }
  const Index* queries(Index b) const { return query + b * query_batch; }
  const Index* keys(Index b) const { return key + b * key_batch; }
  // The positions of keys that a query at this position sees.
  Range visible_to(Index position) const {
    return {lowest == UNLIMITED ? INT64_MIN : wrapped_sum(position, lowest),
            highest == -UNLIMITED ? INT64_MAX : wrapped_sum(position, highest)};
  }
};

// The terms of the offsets on one axis.
struct Axis {
  Rows relative_query;  // at is null where r is q
  Band relative_keys, relative_queries, relative_values, bias;
  Index relative_width;            // of r; 0 where r is q
  float* relative_query_gradient;  // [B, Hq, Lq, relative_width], null where it is not wanted
  Positions positions;
};

// a [B, Hq, Lk] and c [B, Hq, Lq], with a step of 0 where they are shared; null where there is no key bias. The last
// axis of a is contiguous.
struct KeyBias {
  const float *at, *key_shift;
  Index batch, head, key_shift_batch, key_shift_head, key_shift_query;

  const float* keys(Index b, Index h) const { return at + b * batch + h * head; }
  float of_query(Index b, Index h, Index i) const {
    return key_shift[b * key_shift_batch + h * key_shift_head + i * key_shift_query];
  }
};

struct Call {
  Rows query, key, value;
  Axis sequence;
  const Axis* others;
  Index others_count;
  const uint8_t* key_mask;                     // [B, Lk], 1 keeps
  const Index *query_segments, *key_segments;  // [B, Lq], [B, Lk]
  const uint8_t* pair_mask;                    // 1 attends; with the steps of [B, Hq, Lq, Lk]
  const float* added_mask;                     // added to the scores, with the same steps
  Index mask_batch, mask_head, mask_query, mask_key;
  // What blocks of MASK_BLOCK keys have to see; all null where every pair is looked at. The smallest and the largest id
  // of keys, [B, blocks, 2]; NOTHING, LOOK or EVERYTHING under the key mask, [B, blocks]; the same under the mask of
  // pairs, by blocks of queries.
  const Index* key_ids;
  const uint8_t *key_mask_blocks, *pair_blocks;
  Index pair_blocks_batch, pair_blocks_head, pair_blocks_query, pair_blocks_key;
  KeyBias key_bias;
  Index batch, heads, key_heads, queries, keys, width, value_width;
  Index origin, lowest, highest;
  double scale;
  double softcap;           // 0 for none
  double keep_probability;  // the probability with which dropout keeps a weight; 1 where it drops none
  Index seed;               // of dropout
  // Where the first query, key and head of this part stand in the whole call, and how many heads the whole call has.
  Index whole_query, whole_key, whole_head, whole_heads;
  float *output, *lse;  // [B, Hq, Lq, Dv] and [B, Hq, Lq]; lse may be null
  float *maximum,
      *total;  // [B, Hq, Lq], lse = c + maximum + log(total), c the caller's; null where no backward pass follows
  Rows output_gradient;
  const float* lse_gradient;  // [B, Hq, Lq]
  float *query_gradient, *key_gradient, *value_gradient;
  float* mask_gradient;  // with steps of its own, 0 along an axis over which the mask broadcasts
  Index mask_gradient_batch, mask_gradient_head, mask_gradient_query, mask_gradient_key;
  float* key_bias_gradient;      // [B, Hq, Lk]
  Index query_block, key_block;  // the sizes of a block; rounded up to whole groups and panels
  Index threads;
  Index element_type;  // of keys and values: 0 float; in a call of few queries also 1 bfloat16, 2 float16
  Index in_bfloat16;   // 1: the numbers of query, key and value are bfloat16's, widened to floats
  float* workspace;

  Index axes() const { return 1 + others_count; }
  const Axis& axis(Index n) const { return n ? others[n - 1] : sequence; }
  // This axis and all after it look their offsets up; before it positions are contiguous.
  Index first_explicit() const { return sequence.positions.are_explicit() ? 0 : 1; }

  // Whether any axis has a table of this kind.
  bool has(Band Axis::* table) const {
    for (Index n = 0; n < axes(); n++)
      if ((axis(n).*table).rows) return true;
    return false;
  }

  // The keys that any of the queries i .. i + rows - 1 sees by its offset: first and end.
  Index first_key(Index i) const {
    return lowest == UNLIMITED ? 0 : std::min(std::max(lowest - origin + i, Index(0)), keys);
  }
  Index end_key(Index i, Index rows) const {
    if (highest == -UNLIMITED) return keys;
    return std::min(std::max(highest - origin + i + rows, Index(0)), keys);
  }

  // The queries that see any of the keys j .. j + columns - 1 by its offset: first and end.
  Index first_query(Index j) const { return highest == -UNLIMITED ? 0 : std::max(j + origin - highest, Index(0)); }
  Index end_query(Index j, Index columns) const {
    return lowest == UNLIMITED ? queries : std::min(j + columns + origin - lowest, queries);
  }

  // Whether products are products of pairs: for queries, keys and values; and for an axis' table.
  bool takes_pairs() const { return DOTS && in_bfloat16; }
  bool takes_pairs(const Axis& axis, const Band& band) const {
    return takes_pairs() && band.rows && band.in_bfloat16 && !axis.positions.are_explicit();
  }

  bool drops() const { return keep_probability < 1.0; }

  // Writes lse of a row of [B, Hq, Lq], and the numbers that the backward pass needs. Returns the factor of the row's
  // output, 1 / total; 0 for a row that sees no key.
  float finish_row(Index row, float most, float sum) const {
    const bool sees = sum > 0.0f || sum != sum;
    if (lse) lse[row] = sees ? most + std::log(sum) : -INFINITY;
    if (maximum) maximum[row] = most, total[row] = sum;
    return sees ? 1.0f / sum : 0.0f;
  }

  // Whether a mask may hide a pair, by something other than its positions.
  bool masks_pairs() const { return key_mask || query_segments || pair_mask || added_mask; }
  bool has_blocks() const { return key_ids || key_mask_blocks || pair_blocks; }
  Index key_blocks() const { return (keys + MASK_BLOCK - 1) / MASK_BLOCK; }
  // Whether scores become others, pair by pair, before a mask hides any.
  bool changes_scores() const { return key_bias.at || caps(); }
  bool caps() const { return softcap > 0.0; }
};

}  // namespace RELATTN_SET

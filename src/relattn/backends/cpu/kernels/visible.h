// The keys that some queries see, from blocks of keys: of segments, key masks and masks of pairs by the blocks of
// equation/visible_blocks.py, of limits on explicit positions by their panels.
#pragma once
#include "call.h"
#include "products.h"

namespace RELATTN_SET {

// The columns from .. stop - 1 of a block of keys.
struct Columns {
  Index from, stop;

  bool any() const { return from < stop; }
};

// The columns that a group of queries sees: whole panels, up to the last key of the block.
struct VisibleColumns {
  Columns columns;
  bool whole;  // no mask hides any of their pairs, and none adds to its score
};

// What the queries i .. i + count - 1 of a head see, by masks and by limits on explicit positions.
class Visible {
 public:
  Visible(const Call& of, Index batch, Index head, Index first, Index number)
      : call(of), b(batch), h(head), i(first), count(number) {
    if (call.key_segments) ids = Range::of(call.query_segments + b * call.queries + i, count);
    if (!call.sequence.positions.limited()) return;
    const Positions& positions = call.sequence.positions;
    any = all = positions.visible_to(positions.queries(b)[i]);
    for (Index r = 1; r < count; r++) {
      const Range visible = positions.visible_to(positions.queries(b)[i + r]);
      any = {std::min(any.least, visible.least), std::max(any.most, visible.most)};
      all = {std::max(all.least, visible.least), std::min(all.most, visible.most)};
    }
  }

  // Among the `columns` keys from j0 on. Those of a block of MASK_BLOCK may begin anywhere; j0 is a multiple of PANEL.
  VisibleColumns keys(Index j0, Index columns) const {
    const bool limited = call.sequence.positions.limited();
    VisibleColumns visible = {{0, columns}, true};
    if (!limited && !call.masks_pairs()) return visible;
    Index from = columns, stop = 0, seen = 0;
    for (Index c = 0, next; c < columns; c = next) {
      const Index j = j0 + c;
      next = std::min(limited ? c + PANEL : (j / MASK_BLOCK + 1) * MASK_BLOCK - j0, columns);
      const int has = std::min(of_block(j / MASK_BLOCK), limited ? of_limits(j, next - c) : EVERYTHING);
      if (has == NOTHING) continue;
      visible.whole &= has == EVERYTHING;
      from = std::min(from, c), stop = next, seen += next - c;
    }
    return {{from, stop}, visible.whole && seen == stop - from};
  }
  bool sees(Index j0, Index columns) const { return keys(j0, columns).columns.any(); }

 private:
  int of_limits(Index j, Index keys) const {
    const Range at = Range::of(call.sequence.positions.keys(b) + j, keys);
    if (!at.meets(any)) return NOTHING;
    return at.least >= all.least && at.most <= all.most ? EVERYTHING : LOOK;
  }
  int of_block(Index block) const {
    if (!call.has_blocks()) return call.masks_pairs() ? LOOK : EVERYTHING;
    int has = EVERYTHING;
    if (call.key_segments) {
      const Index* of_keys = call.key_ids + (b * call.key_blocks() + block) * 2;
      const Range keys = {of_keys[0], of_keys[1]};
      if (!ids.meets(keys)) return NOTHING;
      if (!ids.one() || !keys.one()) has = LOOK;
    }
    if (call.key_mask) has = std::min(has, int(call.key_mask_blocks[b * call.key_blocks() + block]));
    if (!call.pair_blocks) return has;
    const uint8_t* at =
        call.pair_blocks + b * call.pair_blocks_batch + h * call.pair_blocks_head + block * call.pair_blocks_key;
    int most = NOTHING, least = EVERYTHING;
    for (Index n = i / MASK_BLOCK; n <= (i + count - 1) / MASK_BLOCK; n++) {
      const int rows = at[n * call.pair_blocks_query];
      most = std::max(most, rows), least = std::min(least, rows);
    }
    return most == least ? std::min(has, most) : std::min(has, LOOK);
  }

  const Call& call;
  const Index b, h, i, count;
  Range ids = {}, any = {}, all = {};
};

// A group of up to ROWS queries of a head, and the keys of a block that any of them sees.
struct Group {
  Index a, i, real;   // its first query in a block of queries and in the call, and how many it has
  Index j0, offset;   // the block's first key, and the offset of the first query and this key, if contiguous
  Index begin, stop;  // the keys j0 + begin .. j0 + stop - 1; none where begin >= stop
  Index from, to;     // the same, in whole panels
  bool whole;         // no mask hides any of their pairs, and none adds to its score

  // first: the query of a block of `count` queries from i0 on.
  Group(const Call& call, Index b, Index h, Index i0, Index count, Index first, Index key, Index columns)
      : a(first), i(i0 + first), real(std::min(Index(ROWS), count - first)), j0(key), offset(call.origin + key - i) {
    const VisibleColumns visible = Visible(call, b, h, i, real).keys(j0, columns);
    begin = std::max(call.first_key(i) - j0, visible.columns.from);
    stop = std::min(call.end_key(i, real) - j0, visible.columns.stop);
    from = sees() ? begin / PANEL * PANEL : 0, to = sees() ? rounded_up(stop, PANEL) : 0;
    whole = visible.whole;
  }
  bool sees() const { return begin < stop; }
};

}  // namespace RELATTN_SET

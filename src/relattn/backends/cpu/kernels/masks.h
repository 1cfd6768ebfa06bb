// Changes to complete scores: the cap, the key bias, masks that are tensors, and limits on explicit positions.
#pragma once
#include "elements.h"

namespace RELATTN_SET {

// softcap * tanh(S / softcap) + a_j - c_i for the scores of query i and the `count` keys from `from` on. row: the score
// of key `from`. slopes: the place for the cap's derivative, or null. A hidden pair stays at -inf.
static void cap_and_bias(const Call& call, Index b, Index h, Index i, Index from, Index count, float* row,
                         float* slopes) {
  if (call.caps()) {
    const Vector cap = splat(float(call.softcap)), inverse_cap = splat(float(1.0 / call.softcap));
    for (Index c = 0; c < count; c += LANES) {
      const Vector x = load_part(row + c, count - c);
      const auto [value, derivative] = tanh_and_derivative(x * inverse_cap);
      store_part(row + c, count - c, x == splat(-INFINITY) ? x : value * cap);
      if (slopes) store_part(slopes + c, count - c, derivative);
    }
  }
  if (call.key_bias.at) {
    const float* a = call.key_bias.keys(b, h) + from;
    const float key_shift = call.key_bias.of_query(b, h, i);
    for (Index c = 0; c < count; c++) row[c] += a[c] - key_shift;
  }
}

// The scores of query i and the keys from .. to - 1. row: the score of key `from`. A hidden pair always becomes -inf.
static void mask_scores(const Call& call, Index b, Index h, Index i, Index from, Index to, float* row) {
  const Index step = call.mask_key, count = to - from;
  const Index mask = b * call.mask_batch + h * call.mask_head + i * call.mask_query + from * step;
  if (call.added_mask) {
    const float* added = call.added_mask + mask;
    for (Index c = 0; c < count; c++) row[c] = added[c * step] == -INFINITY ? -INFINITY : row[c] + added[c * step];
  }
  const auto hide_unless = [=](const auto& attends) {
    for (Index c = 0; c < count; c++) row[c] = attends(c) ? row[c] : -INFINITY;
  };
  if (call.pair_mask) hide_unless([step, at = call.pair_mask + mask](Index c) { return at[c * step]; });
  const Index first = b * call.keys + from;
  if (call.key_mask) hide_unless([at = call.key_mask + first](Index c) { return at[c]; });
  if (call.key_segments) {
    const Index id = call.query_segments[b * call.queries + i];
    hide_unless([id, ids = call.key_segments + first](Index c) { return ids[c] == id; });
  }
  const Positions& positions = call.sequence.positions;
  if (!positions.limited()) return;
  const Range visible = positions.visible_to(positions.queries(b)[i]);
  hide_unless([visible, keys = positions.keys(b) + from](Index c) { return visible.has(keys[c]); });
}

}  // namespace RELATTN_SET

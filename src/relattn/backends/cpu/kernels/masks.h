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
  if (call.pair_mask) {
    const uint8_t* attends = call.pair_mask + mask;
    for (Index c = 0; c < count; c++) row[c] = attends[c * step] ? row[c] : -INFINITY;
  }
  if (call.key_mask) {
    const uint8_t* keeps = call.key_mask + b * call.keys + from;
    for (Index c = 0; c < count; c++) row[c] = keeps[c] ? row[c] : -INFINITY;
  }
  if (call.key_segments) {
    const Index id = call.query_segments[b * call.queries + i];
    const Index* ids = call.key_segments + b * call.keys + from;
    for (Index c = 0; c < count; c++) row[c] = ids[c] == id ? row[c] : -INFINITY;
  }
  if (call.sequence.positions.limited()) {
    const Range visible = call.sequence.positions.visible_to(call.sequence.positions.queries(b)[i]);
    const Index* keys = call.sequence.positions.keys(b) + from;
    for (Index c = 0; c < count; c++) row[c] = visible.has(keys[c]) ? row[c] : -INFINITY;
  }
}

}  // namespace RELATTN_SET

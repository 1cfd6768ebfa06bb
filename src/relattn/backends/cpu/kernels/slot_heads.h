// The key heads of a batch, in order, divided into slots that cost about the same.
#pragma once
#include "visible.h"

namespace RELATTN_SET {

constexpr Index MOST_SLOTS = 8;

struct SlotHeads {
  Index first[MOST_SLOTS + 1];  // the key heads first[n] .. first[n + 1] - 1 are those of slot n

  // Where blocks say what is visible, a head costs the tiles of query_block x key_block pairs that it computes, and its
  // blocks of keys; else, and where there is one slot, all heads cost the same.
  SlotHeads(const Call& call, Index slots, Index query_block, Index key_block) {
    const Index heads = call.batch * call.key_heads;
    const bool alike = !call.pair_blocks || !call.pair_blocks_head;  // the heads of a batch element
    Index latest = -1, its_cost = 1;
    const auto cost = [&](Index n) {
      const Index which = alike ? n / call.key_heads * call.key_heads : n;
      if (slots > 1 && call.has_blocks() && which != latest)
        latest = which,
        its_cost = cost_of(call, which / call.key_heads, which % call.key_heads, query_block, key_block);
      return its_cost;
    };
    Index whole = 0, up_to = 0, slot = 0;
    for (Index n = 0; n < heads; n++) whole += cost(n);
    for (Index n = 0; n < heads; n++) {
      up_to += cost(n);
      while (up_to * slots > slot * whole) first[slot++] = n;
    }
    while (slot <= slots) first[slot++] = heads;
  }

 private:
  static Index cost_of(const Call& call, Index b, Index key_head, Index query_block, Index key_block) {
    const Index group = call.heads / call.key_heads;
    Index cost = 0;
    for (Index j0 = 0; j0 < call.keys; j0 += key_block) {
      const Index columns = std::min(key_block, call.keys - j0);
      cost++;
      for (Index i0 = call.first_query(j0) / query_block * query_block; i0 < call.end_query(j0, columns);
           i0 += query_block)
        cost += Visible(call, b, key_head * group, i0, std::min(query_block, call.queries - i0)).sees(j0, columns);
    }
    return cost;
  }
};

}  // namespace RELATTN_SET

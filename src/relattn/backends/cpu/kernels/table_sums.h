// The place where the gradients of a table are added up, and how the sums become one.
#pragma once
#include "call.h"
#include "products.h"
#include "workspace.h"

namespace RELATTN_SET {

// Sums for a table's gradient: [parts][copies][count + NN_ROWS][width]. A product of NN_ROWS rows adds to diagonals
// beyond the table, too. The rows after the last take these numbers and are not read.
struct TableSums {
  float* at = nullptr;
  Index copy = 0, copies = 0, parts = 0;
  bool per_slot = true;  // one copy per slot, where one table serves all heads; else one per head

  TableSums() = default;
  TableSums(const Band& band, Index slots, Index keys_parts, Workspace& workspace) {
    if (!band.gradient) return;
    per_slot = band.heads == 1;
    copies = per_slot ? slots : band.heads;
    parts = keys_parts;
    copy = (band.count + NN_ROWS) * band.width;
    at = workspace.next(parts * copies * copy);
  }
  float* of(Index slot, Index part, Index head) const {
    return at ? at + (part * copies + (per_slot ? slot : head)) * copy : nullptr;
  }

  // Sets the copies of a slot's heads to zero before a part of the slot adds to them. first: the first of these heads.
  void clear(Index slot, Index part, Index first, Index heads) const {
    if (at) std::memset(of(slot, part, first), 0, (per_slot ? 1 : heads) * copy * sizeof(float));
  }

  // The gradient of row t of a head: the sum of its copies, and of all slots' copies where they share the table, in
  // order.
  void write(const Band& band, Index row, float factor) const {
    const Index h = row / band.count, t = row % band.count, width = band.width;
    float* __restrict const to = band.gradient + row * width;
    std::memset(to, 0, width * sizeof(float));
    for (Index p = 0; p < parts; p++)
      for (Index s = per_slot ? 0 : h; s < (per_slot ? copies : h + 1); s++) {
        const float* __restrict from = at + (p * copies + s) * copy + t * width;
        for (Index d = 0; d < width; d++) to[d] += from[d];
      }
    for (Index d = 0; d < width; d++) to[d] *= factor;
  }
};

}  // namespace RELATTN_SET

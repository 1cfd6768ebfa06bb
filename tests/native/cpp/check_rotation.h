// A rotation given to the kernels of every instruction set, and all that it writes compared with its equation in
// float64: a pair (a, b) becomes (a cos - b sin, b cos + a sin).
#pragma once
#include "laid.h"
#include "sets.h"

struct Turn {
  Index batch = 2, heads = 3, length = 1, pairs = 1, spare = 0;  // spare features pass as they are
  bool narrow = false, interleaved = false, back = false, by_batch = false;
  Floats features, cosines, sines;  // [B, H, L, 2 pairs + spare], [L, pairs] or [B, L, pairs]
};

// Each product and their sum are rounded once, by half of EPS, and the sum once more to a bfloat16's 8 digits.
inline void check_one(const Kernels& kernels, const Turn& turn) {
  const Index width = 2 * turn.pairs + turn.spare, count = Index(turn.features.size());
  const CallerTensor features(turn.features, turn.batch, turn.heads, turn.length, width, true, turn.narrow);
  Written found(turn.narrow ? (count + 1) / 2 : count, NAN);
  Rotation call = {};
  call.from = features.rows.at;
  call.from_batch = features.rows.batch, call.from_head = features.rows.head, call.from_row = features.rows.row;
  call.to = found.at(), call.cosines = turn.cosines.data(), call.sines = turn.sines.data();
  call.table_batch = turn.by_batch ? turn.length * turn.pairs : 0;
  call.batch = turn.batch, call.heads = turn.heads, call.length = turn.length;
  call.width = width, call.pairs = turn.pairs;
  call.interleaved = turn.interleaved, call.back = turn.back, call.narrow = turn.narrow, call.threads = 1;
  kernels.rotate(&call);
  found.look_beside("the rotation");

  const auto number = [&](Index n) {
    if (!turn.narrow) return found.at()[n];
    uint16_t bfloat16;
    std::memcpy(&bfloat16, reinterpret_cast<const char*>(found.at()) + 2 * n, sizeof bfloat16);
    const uint32_t bits = uint32_t(bfloat16) << 16U;
    float widened;
    std::memcpy(&widened, &bits, sizeof widened);
    return widened;
  };
  const auto compare_number = [&](Index n, double expected, double size) {
    const double in_float32 = equation::EPS * size;
    compare_one("rotation", n, number(n), expected,
                in_float32 + (turn.narrow ? (std::abs(expected) + in_float32) / 256 : 0.0));
  };
  for (Index row = 0; row < turn.batch * turn.heads * turn.length; row++) {
    const Index b = row / (turn.heads * turn.length), i = row % turn.length;
    for (Index f = 0; f < turn.pairs; f++) {
      const Index table = ((turn.by_batch ? b * turn.length : 0) + i) * turn.pairs + f;
      const Index at = row * width + (turn.interleaved ? 2 * f : f), other = at + (turn.interleaved ? 1 : turn.pairs);
      const double cos = turn.cosines[table], sin = turn.back ? -turn.sines[table] : turn.sines[table];
      const double x = turn.features[at], y = turn.features[other];
      compare_number(at, x * cos - y * sin, std::abs(x * cos) + std::abs(y * sin));
      compare_number(other, y * cos + x * sin, std::abs(y * cos) + std::abs(x * sin));
    }
    for (Index n = row * width + 2 * turn.pairs; n < (row + 1) * width; n++)
      compare_one("what passes", n, number(n), turn.features[n], 0.0);
  }
}

inline void check(std::vector<Kernels>& sets, const Turn& turn) {
  for (Kernels& kernels : sets) {
    tally = &kernels.rotations;
    check_one(kernels, turn);
  }
}

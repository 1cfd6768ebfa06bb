// Random numbers, the same everywhere, and the tensors of a problem made of them.
#pragma once
#include <cstring>

#include "problem.h"

using equation::Axis;
using equation::Floats;
using equation::Index;
using equation::Problem;
using equation::Table;

// Splitmix64 (Steele, Lea and Flood 2014).
class Draw {
 public:
  explicit Draw(uint64_t seed) : state(seed) {}

  uint64_t word() {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EB;
    return z ^ (z >> 31U);
  }
  Index below(Index n) { return Index(word() % uint64_t(n)); }
  // Between -most and most.
  float number(float most) { return most * (float(word() >> 40U) / 8388608.0f - 1.0f); }
  Floats numbers(Index count, float most) {
    Floats found(count);
    for (float& x : found) x = number(most);
    return found;
  }

 private:
  uint64_t state;
};

inline Floats rounded_to_brains(Floats numbers) {
  for (float& number : numbers) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    bits &= 0xffff0000U;
    std::memcpy(&number, &bits, sizeof bits);
  }
  return numbers;
}

inline Floats rounded_to_halves(Floats numbers) {
  for (float& number : numbers) number = float(static_cast<_Float16>(number));
  return numbers;
}

struct Kind {
  const char* name;
  Table Axis::* table;
};
constexpr Kind KINDS[] = {{"relative keys", &Axis::relative_keys},
                          {"relative queries", &Axis::relative_queries},
                          {"relative values", &Axis::relative_values},
                          {"bias", &Axis::bias}};

inline void round_to_bfloat16(Problem& p) {
  p.in_bfloat16 = true;
  for (Floats* numbers : {&p.query, &p.key, &p.value, &p.output_gradient}) *numbers = rounded_to_brains(*numbers);
  for (Axis& axis : p.axes) {
    axis.relative_query = rounded_to_brains(axis.relative_query);
    for (const Kind& kind : KINDS) (axis.*kind.table).rows = rounded_to_brains((axis.*kind.table).rows);
  }
}

// The tensors of a problem whose sizes and tables' kinds stand.
inline void fill(Problem& p, Draw& draw, bool narrow = false) {
  p.scale = 1.0 / std::sqrt(double(p.width));
  const Index rows = p.batch * p.heads * p.queries, keys = p.batch * p.key_heads * p.keys;
  p.query = draw.numbers(rows * p.width, 2.0f);
  for (Axis& axis : p.axes) axis.relative_query = draw.numbers(rows * axis.relative_width, 2.0f);
  p.key = draw.numbers(keys * p.width, 2.0f), p.value = draw.numbers(keys * p.value_width, 1.0f);
  p.output_gradient = draw.numbers(rows * p.value_width, 1.0f), p.lse_gradient = draw.numbers(rows, 1.0f);
  for (Axis& axis : p.axes) {
    axis.relative_keys.width = axis.relative_width ? axis.relative_width : p.width;
    axis.relative_queries.width = p.width, axis.relative_values.width = p.value_width, axis.bias.width = 1;
    for (const Kind& kind : KINDS) {
      Table& table = axis.*kind.table;
      table.rows = draw.numbers(table.heads * table.count * table.width, 1.0f);
    }
  }
  if (narrow) round_to_bfloat16(p);
}

constexpr Index RELATIVE_WIDTHS[] = {32, 0, 16};  // of one axis after the other

// Grouped queries, and all tables on the sequence and on `others` more axes.
inline Problem everything(Draw& draw, Index queries, Index keys, Index others) {
  Problem p;
  p.batch = 2, p.heads = 4, p.key_heads = 2;
  p.queries = queries, p.keys = keys, p.origin = queries - keys + 2;
  p.width = 48, p.value_width = 16;
  p.axes.resize(1 + others);
  for (Index n = 0; n <= others; n++) {
    p.axes[n].relative_width = RELATIVE_WIDTHS[n % 3];
    for (const Kind& kind : KINDS) {
      Table& table = p.axes[n].*kind.table;
      table.heads = draw.below(2) ? p.heads : 1, table.clamps = draw.below(2);
      table.count = 5 + draw.below(40), table.first = -draw.below(table.count + 10);
    }
  }
  fill(p, draw);
  return p;
}

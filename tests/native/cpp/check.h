// A problem given to the kernels of one instruction set, and all that they write compared with the equation.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "equation.h"
#define RELATTN_SET called
#include "call.h"

using called::Call;
using equation::Answers;
using equation::Floats;
using equation::Index;
using equation::Problem;
using equation::Sums;
using equation::Table;

inline std::string place;     // how far along the suite is, for the sentences
inline double closest = 0.0;  // the largest error, divided by its bound
inline long compared = 0;

[[noreturn]] inline __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  std::printf("%s: ", place.c_str());
  va_list given;
  va_start(given, format);
  std::vprintf(format, given);
  va_end(given);
  std::printf("\n");
  std::exit(1);
}

// Memory that the kernels write to, all `first` at first, between rows that they must leave alone.
class Written {
 public:
  Written(Index count, float first) : size(count), all(count + 2 * ROOM, UNTOUCHED) {
    std::fill(at(), at() + count, first);
  }
  // At a multiple of 64 bytes, as the caller gives them a workspace.
  float* at() { return all.data() + before(); }
  void look_beside(const char* what) const {
    for (Index n = 0; n < Index(all.size()); n++)
      if ((n < before() || n >= before() + size) && all[n] != UNTOUCHED) fail("beside %s a number was written", what);
  }

 private:
  static constexpr Index ROOM = 64;
  static constexpr float UNTOUCHED = 12345.0f;
  Index before() const { return ROOM - Index(reinterpret_cast<uintptr_t>(all.data()) % 64 / sizeof(float)); }
  Index size;
  Floats all;
};

using Kernel = void (*)(const Call*);

struct Kernels {
  Index (*workspace)(const Call*, Index);
  Kernel forward, backward;
  Index (*few_workspace)(const Call*);
  Kernel few;
};

// How a problem is given to the kernels.
struct Layout {
  bool few = false;          // by the kernels of few queries, which have no backward pass
  bool narrow = false;       // keys and values in bfloat16
  bool interleaved = false;  // [B, L, heads, width] in memory
  Index query_block = 20, key_block = 40, threads = 1;
};

// [B, heads, L, width] as the layout wants it.
struct Held {
  Floats floats;
  std::vector<uint16_t> brains;
  called::Rows rows = {};

  Held(const Floats& x, Index batch, Index heads, Index length, Index width, bool interleaved, bool narrow) {
    floats.resize(x.size());
    rows.batch = heads * length * width;
    rows.head = interleaved ? width : length * width, rows.row = interleaved ? heads * width : width;
    for (Index b = 0; b < batch; b++)
      for (Index h = 0; h < heads; h++)
        for (Index i = 0; i < length; i++)
          for (Index d = 0; d < width; d++)
            floats[b * rows.batch + h * rows.head + i * rows.row + d] = x[((b * heads + h) * length + i) * width + d];
    rows.at = floats.data();
    if (!narrow) return;
    for (const float number : floats) {
      uint32_t bits;
      std::memcpy(&bits, &number, sizeof bits);
      brains.push_back(uint16_t(bits >> 16U));
    }
    rows.at = reinterpret_cast<const float*>(brains.data());
  }
};

inline called::Band band(const Table& table, float* gradient) {
  if (table.count == 0) return {};
  called::Band band = {};
  band.rows = table.rows.data(), band.gradient = gradient;
  band.heads = table.heads, band.head = table.heads == 1 ? 0 : table.count * table.width;
  band.count = table.count, band.first = table.first, band.width = table.width, band.clamps = table.clamps;
  return band;
}

inline void compare_one(const char* what, Index n, double found, double expected, double bound) {
  compared++;
  if (found == expected) return;  // infinities, too
  const double error = std::abs(found - expected);
  if (!(error <= bound))
    fail("%s [%ld] is %.9g; the equation gives %.9g, and rounding explains %.2g", what, long(n), found, expected,
         bound);
  closest = std::max(closest, error / bound);
}

inline void compare(const char* what, Written& found, const Sums& expected) {
  for (Index n = 0; n < Index(expected.size()); n++)
    compare_one(what, n, found.at()[n], expected[n].value, expected[n].bound());
  found.look_beside(what);
}

// Runs the kernels on a problem and compares all that they write.
inline void check(const Kernels& kernels, const Problem& p, const Layout& layout) {
  const Answers expected = equation::answers(p);
  const auto held = [&](const Floats& x, Index heads, Index length, Index width, bool narrow) {
    return Held(x, p.batch, heads, length, width, layout.interleaved, narrow);
  };
  const Held query = held(p.query, p.heads, p.queries, p.width, false);
  const Held key = held(p.key, p.key_heads, p.keys, p.width, layout.narrow);
  const Held value = held(p.value, p.key_heads, p.keys, p.value_width, layout.narrow);
  const Held relative_query = held(p.relative_query, p.heads, p.queries, p.relative_width, false);
  const Held output_gradient = held(p.output_gradient, p.heads, p.queries, p.value_width, false);
  const Index rows = p.batch * p.heads * p.queries;
  Written output(rows * p.value_width, NAN), lse(rows, NAN), maximum(rows, NAN), total(rows, NAN);
  const auto zeros = [](const auto& like) { return Written(Index(like.size()), 0.0f); };
  Written by_query = zeros(p.query), by_key = zeros(p.key), by_value = zeros(p.value);
  Written by_relative_query = zeros(p.relative_query), by_mask = zeros(p.added_mask);
  Written by_key_bias = zeros(p.key_bias);
  Written by_relative_keys = zeros(p.relative_keys.rows), by_relative_queries = zeros(p.relative_queries.rows);
  Written by_relative_values = zeros(p.relative_values.rows), by_bias = zeros(p.bias.rows);

  Call call = {};
  call.query = query.rows, call.key = key.rows, call.value = value.rows;
  if (p.relative_width) call.relative_query = relative_query.rows;
  call.relative_keys = band(p.relative_keys, by_relative_keys.at());
  call.relative_queries = band(p.relative_queries, by_relative_queries.at());
  call.relative_values = band(p.relative_values, by_relative_values.at());
  call.bias = band(p.bias, by_bias.at());
  call.key_mask = p.key_mask.empty() ? nullptr : p.key_mask.data();
  if (!p.key_segments.empty()) call.query_segments = p.query_segments.data(), call.key_segments = p.key_segments.data();
  call.pair_mask = p.pair_mask.empty() ? nullptr : p.pair_mask.data();
  call.added_mask = p.added_mask.empty() ? nullptr : p.added_mask.data();
  call.mask_batch = p.mask_steps[0], call.mask_head = p.mask_steps[1];
  call.mask_query = p.mask_steps[2], call.mask_key = p.mask_steps[3];
  if (!p.key_bias.empty())
    call.key_bias = {p.key_bias.data(), p.less.data(), p.heads * p.keys, p.keys, p.heads * p.queries, p.queries, 1};
  call.batch = p.batch, call.heads = p.heads, call.key_heads = p.key_heads;
  call.queries = p.queries, call.keys = p.keys;
  call.width = p.width, call.value_width = p.value_width, call.relative_width = p.relative_width;
  call.origin = p.origin, call.lowest = p.lowest, call.highest = p.highest;
  if (!p.query_positions.empty()) {
    call.lists = {p.query_positions.data(),
                  p.key_positions.data(),
                  Problem::positions_step(p.query_positions, p.queries),
                  Problem::positions_step(p.key_positions, p.keys),
                  p.lowest,
                  p.highest};
    call.lowest = called::NEVER, call.highest = -called::NEVER;
  }
  call.scale = p.scale, call.softcap = p.softcap, call.kept = p.kept, call.seed = Index(p.seed);
  call.output = output.at(), call.lse = lse.at(), call.maximum = maximum.at(), call.total = total.at();
  call.query_block = layout.query_block, call.key_block = layout.key_block;
  call.threads = layout.threads, call.narrow = layout.narrow;

  const auto run = [&](Index floats, Kernel kernel) {
    Written workspace(floats, NAN);
    call.workspace = workspace.at();
    kernel(&call);
    workspace.look_beside("the workspace");
  };
  if (layout.few)
    run(kernels.few_workspace(&call), kernels.few);
  else
    run(kernels.workspace(&call, 0), kernels.forward);
  compare("output", output, expected.output);
  for (Index n = 0; n < rows; n++) compare_one("log-sum-exp", n, lse.at()[n], expected.lse[n], expected.lse_bound[n]);
  lse.look_beside("log-sum-exp"), maximum.look_beside("maximum"), total.look_beside("total");
  if (layout.few) return;

  call.output_gradient = output_gradient.rows, call.lse_gradient = p.lse_gradient.data();
  call.query_gradient = by_query.at(), call.key_gradient = by_key.at(), call.value_gradient = by_value.at();
  if (p.relative_width) call.relative_query_gradient = by_relative_query.at();
  if (call.added_mask) {
    call.mask_gradient = by_mask.at();
    call.mask_gradient_batch = p.mask_steps[0], call.mask_gradient_head = p.mask_steps[1];
    call.mask_gradient_query = p.mask_steps[2], call.mask_gradient_key = p.mask_steps[3];
  }
  if (call.key_bias.at) call.key_bias_gradient = by_key_bias.at();
  run(kernels.workspace(&call, 1), kernels.backward);
  compare("gradient of query", by_query, expected.query);
  compare("gradient of key", by_key, expected.key);
  compare("gradient of value", by_value, expected.value);
  compare("gradient of relative_query", by_relative_query, expected.relative_query);
  compare("gradient of relative_keys", by_relative_keys, expected.relative_keys);
  compare("gradient of relative_queries", by_relative_queries, expected.relative_queries);
  compare("gradient of relative_values", by_relative_values, expected.relative_values);
  compare("gradient of bias", by_bias, expected.bias);
  compare("gradient of the mask", by_mask, expected.mask);
  compare("gradient of the key bias", by_key_bias, expected.key_bias);
}

// The compiled kernels beside the equation in float64: suite LIBRARY, on every instruction set that this machine runs.
//
// It draws the same numbers everywhere, and needs no Python, so that it runs where PyTorch does not. It exits with 1
// and a sentence where an answer or a gradient lies beyond its bound (equation.h), or a number beside it was written.
// Without PyTorch there is no OpenMP runtime, and so one thread.
#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

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

namespace {

std::string place;     // how far along the suite is, for the sentences
double closest = 0.0;  // the largest error, divided by its bound
long compared = 0;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  std::printf("%s: ", place.c_str());
  va_list given;
  va_start(given, format);
  std::vprintf(format, given);
  va_end(given);
  std::printf("\n");
  std::exit(1);
}

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

called::Band band(const Table& table, float* gradient) {
  if (table.count == 0) return {};
  called::Band band = {};
  band.rows = table.rows.data(), band.gradient = gradient;
  band.heads = table.heads, band.head = table.heads == 1 ? 0 : table.count * table.width;
  band.count = table.count, band.first = table.first, band.width = table.width, band.clamps = table.clamps;
  return band;
}

void compare_one(const char* what, Index n, double found, double expected, double bound) {
  compared++;
  if (found == expected) return;  // infinities, too
  const double error = std::abs(found - expected);
  if (!(error <= bound))
    fail("%s [%ld] is %.9g; the equation gives %.9g, and rounding explains %.2g", what, long(n), found, expected,
         bound);
  closest = std::max(closest, error / bound);
}

void compare(const char* what, Written& found, const Sums& expected) {
  for (Index n = 0; n < Index(expected.size()); n++)
    compare_one(what, n, found.at()[n], expected[n].value, expected[n].bound());
  found.look_beside(what);
}

// Runs the kernels on a problem and compares all that they write.
void check(const Kernels& kernels, const Problem& p, const Layout& layout) {
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
  call.batch = p.batch, call.heads = p.heads, call.key_heads = p.key_heads;
  call.queries = p.queries, call.keys = p.keys;
  call.width = p.width, call.value_width = p.value_width, call.relative_width = p.relative_width;
  call.origin = p.origin, call.lowest = p.lowest, call.highest = p.highest;
  call.scale = p.scale, call.kept = p.kept, call.seed = Index(p.seed);
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
}

// --- What is drawn -------------------------------------------------------------------------------------------------

Floats rounded_to_brains(Floats numbers) {
  for (float& number : numbers) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    bits &= 0xffff0000U;
    std::memcpy(&number, &bits, sizeof bits);
  }
  return numbers;
}

// The tensors of a problem whose sizes and tables' kinds stand.
void fill(Problem& p, Draw& draw, bool narrow = false) {
  p.scale = 1.0 / std::sqrt(double(p.width));
  const Index rows = p.batch * p.heads * p.queries, keys = p.batch * p.key_heads * p.keys;
  p.query = draw.numbers(rows * p.width, 2.0f), p.relative_query = draw.numbers(rows * p.relative_width, 2.0f);
  p.key = draw.numbers(keys * p.width, 2.0f), p.value = draw.numbers(keys * p.value_width, 1.0f);
  if (narrow) p.key = rounded_to_brains(p.key), p.value = rounded_to_brains(p.value);
  p.output_gradient = draw.numbers(rows * p.value_width, 1.0f), p.lse_gradient = draw.numbers(rows, 1.0f);
  p.relative_keys.width = p.relative_width ? p.relative_width : p.width;
  p.relative_queries.width = p.width, p.relative_values.width = p.value_width, p.bias.width = 1;
  for (Table* table : {&p.relative_keys, &p.relative_queries, &p.relative_values, &p.bias})
    table->rows = draw.numbers(table->heads * table->count * table->width, 1.0f);
}

constexpr Index WIDTHS[] = {16, 48, 64};

struct Limits {
  const char* name;
  Index lowest, highest;
};
constexpr Limits LIMITS[] = {
    {"every key", called::NEVER, -called::NEVER}, {"causal", called::NEVER, 0}, {"a window", -30, 9}};

struct Kind {
  const char* name;
  Table Problem::* table;
};
constexpr Kind KINDS[] = {{"relative keys", &Problem::relative_keys},
                          {"relative queries", &Problem::relative_queries},
                          {"relative values", &Problem::relative_values},
                          {"bias", &Problem::bias}};

// Every kind of table alone, shared or per head, clamped or zero beyond its rows, under every kind of limit; both
// passes of many queries, and few queries.
void each_table(const Kernels& kernels, Draw& draw) {
  Index number = 0;
  for (const Kind& kind : KINDS)
    for (const Limits& limits : LIMITS)
      for (const bool per_head : {false, true})
        for (const bool clamps : {false, true})
          for (const bool few : {false, true}) {
            Problem p;
            p.queries = few ? 3 : 30 + draw.below(20), p.keys = few ? 290 : 30 + draw.below(40);
            p.origin = few ? -250 : draw.below(30) - 15;
            p.lowest = limits.lowest, p.highest = limits.highest;
            p.width = WIDTHS[number++ % 3], p.value_width = WIDTHS[draw.below(3)];
            if (few) p.width -= draw.below(8), p.value_width -= draw.below(8);  // any width
            Table& table = p.*kind.table;
            table.heads = per_head ? p.heads : 1, table.clamps = clamps;
            table.count = 1 + draw.below(50), table.first = -draw.below(table.count + 10);
            place = std::string(kind.name) + (per_head ? " per head" : "") + (clamps ? ", clamped, " : ", ") +
                    limits.name + (few ? ", few queries" : "") + ", width " + std::to_string(p.width);
            fill(p, draw);
            Layout layout;
            layout.few = few, layout.interleaved = draw.below(2);
            check(kernels, p, layout);
          }
}

// All tables, grouped queries and a relative query of its own width.
Problem everything(Draw& draw, Index queries, Index keys) {
  Problem p;
  p.batch = 2, p.heads = 4, p.key_heads = 2;
  p.queries = queries, p.keys = keys, p.origin = queries - keys + 2;
  p.width = 48, p.value_width = 16, p.relative_width = 32;
  for (const Kind& kind : KINDS) {
    Table& table = p.*kind.table;
    table.heads = draw.below(2) ? p.heads : 1, table.clamps = draw.below(2);
    table.count = 5 + draw.below(40), table.first = -draw.below(table.count + 10);
  }
  fill(p, draw);
  return p;
}

struct Mask {
  const char* name;
  void (*lay)(Problem&, Draw&);
};

// As the mask's steps say, of `count` numbers.
void hide(Problem& p, Draw& draw, Index count) {
  for (Index n = 0; n < count; n++) p.pair_mask.push_back(draw.below(4) > 0);
}
void add(Problem& p, Draw& draw, Index count) {
  p.added_mask = draw.numbers(count, 1.0f);
  for (float& number : p.added_mask)
    if (draw.below(5) == 0) number = -INFINITY;
}

constexpr Mask MASKS[] = {
    {"no mask", [](Problem&, Draw&) {}},
    {"a key mask that leaves a batch element nothing",
     [](Problem& p, Draw& draw) {
       for (Index n = 0; n < p.batch * p.keys; n++) p.key_mask.push_back(n < p.keys && draw.below(3) > 0);
     }},
    {"segments",
     [](Problem& p, Draw& draw) {
       for (Index n = 0; n < p.batch * p.queries; n++) p.query_segments.push_back(draw.below(3));
       for (Index n = 0; n < p.batch * p.keys; n++) p.key_segments.push_back(draw.below(2));
     }},
    {"a boolean mask by heads",
     [](Problem& p, Draw& draw) {
       p.mask_steps = {0, p.queries * p.keys, p.keys, 1};
       hide(p, draw, p.heads * p.queries * p.keys);
     }},
    {"a float mask for every pair",
     [](Problem& p, Draw& draw) {
       p.mask_steps = {p.heads * p.queries * p.keys, p.queries * p.keys, p.keys, 1};
       add(p, draw, p.batch * p.heads * p.queries * p.keys);
     }},
    {"a float mask by queries and keys",
     [](Problem& p, Draw& draw) {
       p.mask_steps = {0, 0, p.keys, 1};
       add(p, draw, p.queries * p.keys);
     }},
    {"a float mask by queries",
     [](Problem& p, Draw& draw) {
       p.mask_steps = {0, 0, 1, 0};
       add(p, draw, p.queries);
     }},
};

// Every mask, and none, beside all tables; then with dropout; then few queries, in float32 and in bfloat16.
void everything_at_once(const Kernels& kernels, Draw& draw) {
  for (const Mask& mask : MASKS)
    for (const bool few : {false, true})
      for (const bool drops : {false, true})
        for (const bool narrow : {false, true}) {
          if (narrow && !few) continue;
          place = std::string("all tables, ") + mask.name + (drops ? ", dropout" : "") +
                  (few ? narrow ? ", few queries in bfloat16" : ", few queries" : "");
          Problem p = few ? everything(draw, 2, 270) : everything(draw, 41, 67);
          if (narrow) fill(p, draw, true);
          if (drops) p.kept = 0.7, p.seed = draw.word() >> 1U;
          if (draw.below(2)) p.highest = p.origin + p.keys / 2;
          mask.lay(p, draw);
          Layout layout;
          layout.few = few, layout.narrow = narrow, layout.interleaved = draw.below(2);
          layout.query_block = 1 + draw.below(40), layout.key_block = 1 + draw.below(70);
          check(kernels, p, layout);
        }
}

// --- What the suite itself is held to ------------------------------------------------------------------------------

// The answers that the authors of Philox publish with their library, Random123, as kat_vectors.
void check_philox() {
  place = "Philox";
  const std::array<uint32_t, 4> words =
      equation::philox({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0});
  if (words != std::array<uint32_t, 4>{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1})
    fail("the words are not those that its authors publish");
}

// The change of <dO, O> + <dlse, lse> between two problems on both sides of this one is that by its gradients. What the
// steps of up to 2^-13 leave is of third order.
void check_gradients(Draw& draw) {
  Problem p = everything(draw, 5, 7);
  p.mask_steps = {0, 0, p.keys, 1};
  p.added_mask = draw.numbers(p.queries * p.keys, 1.0f);
  p.kept = 0.8, p.seed = 42;
  const Answers at = equation::answers(p);
  struct Input {
    const char* name;
    Floats& numbers;
    const Sums& gradient;
  };
  const Input inputs[] = {{"query", p.query, at.query},
                          {"key", p.key, at.key},
                          {"value", p.value, at.value},
                          {"relative query", p.relative_query, at.relative_query},
                          {"relative keys", p.relative_keys.rows, at.relative_keys},
                          {"relative queries", p.relative_queries.rows, at.relative_queries},
                          {"relative values", p.relative_values.rows, at.relative_values},
                          {"bias", p.bias.rows, at.bias},
                          {"mask", p.added_mask, at.mask}};
  const auto total = [&p] {
    const Answers found = equation::answers(p);
    double sum = 0.0;
    for (size_t n = 0; n < found.output.size(); n++) sum += p.output_gradient[n] * found.output[n].value;
    for (size_t n = 0; n < found.lse.size(); n++) sum += p.lse_gradient[n] * found.lse[n];
    return sum;
  };
  for (const Input& input : inputs) {
    place = std::string("the equation's gradient by ") + input.name;
    const Floats here = input.numbers;
    Floats ahead = here, behind = here;
    double expected = 0.0, size = 0.0;
    for (size_t n = 0; n < here.size(); n++) {
      const float step = draw.number(1.0f / 8192);
      ahead[n] += step, behind[n] -= step;
      const double change = (double(ahead[n]) - behind[n]) * input.gradient[n].value;
      expected += change, size += std::abs(change);
    }
    input.numbers = ahead;
    const double above = total();
    input.numbers = behind;
    const double found = above - total();
    input.numbers = here;
    if (!(std::abs(found - expected) <= 1e-5 * size)) fail("found %.9g, expected %.9g", found, expected);
  }
}

// A function of the library, null where it has none of the name.
template <class Function>
Function find(void* library, const char* name, const char* set) {
  return reinterpret_cast<Function>(dlsym(library, (std::string("relattn_") + name + "_" + set).c_str()));
}

bool runs(void* library, const char* set) {
  const auto asked = find<int (*)()>(library, "runs", set);
  return find<Kernel>(library, "forward", set) && (!asked || asked());
}

void check_set(void* library, const char* set) {
  const Kernels kernels = {find<Index (*)(const Call*, Index)>(library, "workspace", set),
                           find<Kernel>(library, "forward", set), find<Kernel>(library, "backward", set),
                           find<Index (*)(const Call*)>(library, "few_workspace", set),
                           find<Kernel>(library, "few", set)};
  Draw draw(1);
  compared = 0, closest = 0.0;
  each_table(kernels, draw);
  everything_at_once(kernels, draw);
  std::printf("%s: %ld numbers within their bounds, the furthest at %.2g of its own\n", set, compared, closest);
}

}  // namespace

int main(int count, char** given) {
  place = "suite";
  if (count != 2) fail("expected one argument, the library");
  void* library = dlopen(given[1], RTLD_NOW);  // NOLINT(clang-analyzer-optin.taint.GenericTaint): the caller's choice
  if (!library) fail("%s", dlerror());
  check_philox();
  Draw draw(1);
  check_gradients(draw);
  for (const char* set : {"avx512", "avx2"})
    if (runs(library, set)) check_set(library, set);
  place = "suite";
  if (!runs(library, "generic")) fail("the library has no kernels");
  check_set(library, "generic");
  return 0;
}

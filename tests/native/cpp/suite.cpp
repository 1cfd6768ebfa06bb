// The compiled kernels beside the equation in float64: suite LIBRARY, on every instruction set that this machine runs.
//
// It draws the same numbers everywhere, and needs no Python, so that it runs where PyTorch does not. It exits with 1
// and a sentence where an answer or a gradient lies beyond its bound (equation.h), or a number beside it was written.
// Without PyTorch there is no OpenMP runtime, and so one thread.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "check_rotation.h"

namespace {

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

// Changes the positions 0, 1, ... of one side.
struct List {
  const char* name;
  void (*lay)(std::vector<Index>&, Draw&);
};

constexpr Index BEYOND_32_BITS = 6442450944;

constexpr List LISTS[] = {
    {"in a row",
     [](std::vector<Index>& positions, Draw& draw) {
       const Index first = draw.below(20) - 10;
       for (Index& position : positions) position += first;
     }},
    {"with gaps",
     [](std::vector<Index>& positions, Draw& draw) {
       Index gaps = 0;
       for (Index& position : positions) position += gaps += draw.below(3);
     }},
    {"thrice each",
     [](std::vector<Index>& positions, Draw&) {
       for (Index& position : positions) position /= 3;
     }},
    {"backwards", [](std::vector<Index>& positions, Draw&) { std::reverse(positions.begin(), positions.end()); }},
    {"in any order",
     [](std::vector<Index>& positions, Draw& draw) {
       for (size_t n = positions.size(); n > 1; n--) std::swap(positions[n - 1], positions[draw.below(Index(n))]);
     }},
    {"spread over hundreds",
     [](std::vector<Index>& positions, Draw& draw) {
       for (Index& position : positions) position = draw.below(600);
     }},
    {"now and then beyond 32 bits",
     [](std::vector<Index>& positions, Draw& draw) {
       for (Index& position : positions) position += (draw.below(5) - 2) / 2 * BEYOND_32_BITS;
     }},
};

constexpr const List& IN_ANY_ORDER = LISTS[4];

// One list of a side, or one for each batch element.
std::vector<Index> positions_of(const List& list, Draw& draw, Index batch, Index length) {
  std::vector<Index> found;
  for (Index b = draw.below(2) ? batch : 1; b > 0; b--) {
    std::vector<Index> positions(length);
    for (Index n = 0; n < length; n++) positions[n] = n;
    list.lay(positions, draw);
    found.insert(found.end(), positions.begin(), positions.end());
  }
  return found;
}

// The queries among the keys, or beside the last of them, as where a token is decoded.
void lay_lists(const List& list, Problem& p, Draw& draw) {
  p.query_positions = positions_of(list, draw, p.batch, p.queries);
  p.key_positions = positions_of(list, draw, p.batch, p.keys);
  if (draw.below(2))
    for (Index& position : p.query_positions) position += p.keys - p.queries;
}

// Every kind of table with positions listed in every way: narrow tables, and wide ones whose rows the pairs look up far
// from one another.
void each_list(const Kernels& kernels, Draw& draw) {
  Index number = 0;
  for (const Kind& kind : KINDS)
    for (const List& list : LISTS)
      for (const bool wide : {false, true})
        for (const bool clamps : {false, true})
          for (const bool few : {false, true}) {
            Problem p;
            p.batch = 2, p.queries = few ? 2 : 14 + draw.below(12), p.keys = few ? 260 : 20 + draw.below(25);
            const Limits& limits = LIMITS[number++ % 3];
            p.lowest = limits.lowest, p.highest = limits.highest;
            p.width = WIDTHS[wide ? 0 : draw.below(2)], p.value_width = WIDTHS[wide ? 0 : draw.below(2)];
            if (few) p.width -= draw.below(8), p.value_width -= draw.below(8);
            Table& table = p.*kind.table;
            table.heads = draw.below(2) ? p.heads : 1, table.clamps = clamps;
            table.count = wide ? 400 + draw.below(30) : 1 + draw.below(50), table.first = -draw.below(table.count + 10);
            place = std::string(kind.name) + (table.heads > 1 ? " per head" : "") + (clamps ? ", clamped, " : ", ") +
                    limits.name + (few ? ", few queries" : "") + (wide ? ", a wide table" : "") + ", positions " +
                    list.name;
            fill(p, draw);
            lay_lists(list, p, draw);
            Layout layout;
            layout.few = few, layout.interleaved = draw.below(2);
            layout.query_block = 1 + draw.below(20), layout.key_block = 1 + draw.below(40);
            check(kernels, p, layout);
          }
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

// A cap, a key bias, or both.
void add_terms_of_no_axis(Problem& p, Draw& draw) {
  const Index which = draw.below(3);
  if (which != 1) p.softcap = 0.5 + double(draw.below(8));
  if (which == 0) return;
  p.key_bias = draw.numbers(p.batch * p.heads * p.keys, 4.0f),
  p.less = draw.numbers(p.batch * p.heads * p.queries, 4.0f);
}

// Every mask, and none, beside all tables; then with dropout; then few queries, in float32 and in bfloat16; each with
// what belongs to no axis, too. list: of the positions, null for runs.
void everything_at_once(const Kernels& kernels, Draw& draw, const List* list) {
  for (const Mask& mask : MASKS)
    for (const bool few : {false, true})
      for (const bool drops : {false, true})
        for (const bool narrow : {false, true})
          for (const bool more : {false, true}) {
            if (narrow && !few) continue;
            place = std::string("all tables, ") + mask.name + (drops ? ", dropout" : "") +
                    (few ? narrow ? ", few queries in bfloat16" : ", few queries" : "") + (more ? ", capped" : "");
            Problem p = few ? everything(draw, 2, 270) : everything(draw, 41, 67);
            if (narrow) fill(p, draw, true);
            if (drops) p.kept = 0.7, p.seed = draw.word() >> 1U;
            if (draw.below(2)) p.highest = p.origin + p.keys / 2;
            mask.lay(p, draw);
            if (list) lay_lists(*list, p, draw), place += std::string(", positions ") + list->name;
            if (more) add_terms_of_no_axis(p, draw);
            Layout layout;
            layout.few = few, layout.narrow = narrow, layout.interleaved = draw.below(2);
            layout.query_block = 1 + draw.below(40), layout.key_block = 1 + draw.below(70);
            check(kernels, p, layout);
          }
}

// Widths and lengths on both sides of a vector and of a block.
void each_rotation(Rotate rotate, Draw& draw) {
  for (const Index pairs : {1, 4, 7, 16, 20, 33})
    for (const bool narrow : {false, true})
      for (const bool interleaved : {false, true})
        for (const bool back : {false, true}) {
          Turn turn;
          turn.pairs = pairs, turn.narrow = narrow, turn.interleaved = interleaved, turn.back = back;
          turn.length = 1 + draw.below(70), turn.spare = draw.below(3), turn.by_batch = draw.below(2);
          place = std::string("a rotation") + (back ? " back" : "") + (interleaved ? " of neighbours" : "") +
                  (narrow ? " in bfloat16" : "") + ", pairs " + std::to_string(pairs);
          turn.features = draw.numbers(turn.batch * turn.heads * turn.length * (2 * pairs + turn.spare), 2.0f);
          if (narrow) turn.features = rounded_to_brains(turn.features);
          const Index angles = (turn.by_batch ? turn.batch : 1) * turn.length * pairs;
          turn.cosines = draw.numbers(angles, 1.0f), turn.sines = draw.numbers(angles, 1.0f);
          check(rotate, turn);
        }
}

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
void check_gradients(Draw& draw, bool listed) {
  Problem p = everything(draw, 5, 7);
  if (listed) lay_lists(IN_ANY_ORDER, p, draw);
  p.mask_steps = {0, 0, p.keys, 1};
  p.added_mask = draw.numbers(p.queries * p.keys, 1.0f);
  p.kept = 0.8, p.seed = 42;
  p.softcap = 2.0;
  p.key_bias = draw.numbers(p.batch * p.heads * p.keys, 1.0f),
  p.less = draw.numbers(p.batch * p.heads * p.queries, 1.0f);
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
                          {"mask", p.added_mask, at.mask},
                          {"key bias", p.key_bias, at.key_bias}};
  const auto total = [&p] {
    const Answers found = equation::answers(p);
    double sum = 0.0;
    for (size_t n = 0; n < found.output.size(); n++) sum += p.output_gradient[n] * found.output[n].value;
    for (size_t n = 0; n < found.lse.size(); n++) sum += p.lse_gradient[n] * found.lse[n];
    return sum;
  };
  for (const Input& input : inputs) {
    place = std::string("the equation's gradient by ") + input.name + (listed ? ", listed positions" : "");
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

void report(const char* what) {
  place = what;
  if (double(compared) > equation::MOST_NUMBERS) fail("%ld numbers, more than the bounds allow for", compared);
  std::printf("%s: %ld numbers within their bounds, the furthest at %.2g of its own\n", what, compared, closest);
  compared = 0, closest = 0.0;
}

void check_set(void* library, const char* set) {
  const Kernels kernels = {find<Index (*)(const Call*, Index)>(library, "workspace", set),
                           find<Kernel>(library, "forward", set), find<Kernel>(library, "backward", set),
                           find<Index (*)(const Call*)>(library, "few_workspace", set),
                           find<Kernel>(library, "few", set)};
  Draw draw(1);
  each_table(kernels, draw);
  everything_at_once(kernels, draw, nullptr);
  each_list(kernels, draw);
  everything_at_once(kernels, draw, &IN_ANY_ORDER);
  report(set);
  each_rotation(find<Rotate>(library, "rotate", set), draw);
  report((std::string(set) + ", rotations").c_str());
}

}  // namespace

int main(int count, char** given) {
  place = "suite";
  if (count != 2) fail("expected one argument, the library");
  void* library = dlopen(given[1], RTLD_NOW);  // NOLINT(clang-analyzer-optin.taint.GenericTaint): the caller's choice
  if (!library) fail("%s", dlerror());
  check_philox();
  Draw draw(1);
  for (const bool listed : {false, true}) check_gradients(draw, listed);
  for (const char* set : {"avx512", "avx2"})
    if (runs(library, set)) check_set(library, set);
  place = "suite";
  if (!runs(library, "generic")) fail("the library has no kernels");
  check_set(library, "generic");
  return 0;
}

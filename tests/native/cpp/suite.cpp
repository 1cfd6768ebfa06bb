// The compiled kernels beside the equation in float64: suite LIBRARY, on every instruction set that this machine runs.
//
// It draws the same numbers everywhere, and needs no Python, so that it runs where PyTorch does not. It exits with 1
// and a sentence where an answer or a gradient lies beyond its bound (equation.h), or a number beside it was written.
// Without PyTorch there is no OpenMP runtime, and so one thread.
#include "check.h"
#include "check_gradients.h"
#include "check_rotation.h"

namespace {

constexpr Index WIDTHS[] = {16, 48, 64};

struct Limits {
  const char* name;
  Index lowest, highest;
};
constexpr Limits LIMITS[] = {
    {"every key", called::UNLIMITED, -called::UNLIMITED}, {"causal", called::UNLIMITED, 0}, {"a window", -30, 9}};

void draw_rows(Table& table, Draw& draw, Index heads, bool clamps, bool wide) {
  table.heads = heads, table.clamps = clamps;
  table.count = wide ? 400 + draw.below(30) : 1 + draw.below(50), table.first = -draw.below(table.count + 10);
}

// What products of weights in bfloat16 may change: half a unit of the last place of 8 bits.
constexpr double ROUNDED = 1.0 / 256;

// Every kind of table alone, shared or per head, clamped or zero beyond its rows, under every kind of limit; both
// passes of many queries, in bfloat16 or not, and few queries.
void each_table(std::vector<Kernels>& sets, Draw& draw, bool narrow) {
  Index number = 0;
  for (const Kind& kind : KINDS)
    for (const Limits& limits : LIMITS)
      for (const bool per_head : {false, true})
        for (const bool clamps : {false, true})
          for (const bool few : {false, true}) {
            if (narrow && few) continue;
            Problem p;
            p.queries = few ? 3 : 30 + draw.below(20), p.keys = few ? 290 : 30 + draw.below(40);
            p.origin = few ? -250 : draw.below(30) - 15;
            p.lowest = limits.lowest, p.highest = limits.highest;
            p.width = WIDTHS[number++ % 3], p.value_width = WIDTHS[draw.below(3)];
            if (few) p.width -= draw.below(8), p.value_width -= draw.below(8);  // any width
            draw_rows(p.sequence().*kind.table, draw, per_head ? p.heads : 1, clamps, false);
            place = std::string(kind.name) + (per_head ? " per head" : "") + (clamps ? ", clamped, " : ", ") +
                    limits.name + (few ? ", few queries" : "") + (narrow ? ", bfloat16" : "") + ", width " +
                    std::to_string(p.width);
            fill(p, draw, narrow);
            if (narrow) p.rounded = ROUNDED;
            Layout layout;
            layout.few = few, layout.interleaved = draw.below(2);
            check(sets, p, layout);
          }
}

// Every kind of table with explicit positions in every pattern: narrow tables, and wide ones whose rows the pairs look
// up far from one another.
void each_pattern(std::vector<Kernels>& sets, Draw& draw) {
  Index number = 0;
  for (const Kind& kind : KINDS)
    for (const Pattern& pattern : PATTERNS)
      for (const bool wide : {false, true})
        for (const bool clamps : {false, true})
          for (const bool few : {false, true}) {
            Problem p;
            p.batch = 2, p.queries = few ? 2 : 14 + draw.below(12), p.keys = few ? 260 : 20 + draw.below(25);
            const Limits& limits = LIMITS[number++ % 3];
            p.lowest = limits.lowest, p.highest = limits.highest;
            p.width = WIDTHS[wide ? 0 : draw.below(2)], p.value_width = WIDTHS[wide ? 0 : draw.below(2)];
            if (few) p.width -= draw.below(8), p.value_width -= draw.below(8);
            const bool per_head = draw.below(2);
            draw_rows(p.sequence().*kind.table, draw, per_head ? p.heads : 1, clamps, wide);
            place = std::string(kind.name) + (per_head ? " per head" : "") + (clamps ? ", clamped, " : ", ") +
                    limits.name + (few ? ", few queries" : "") + (wide ? ", a wide table" : "") + ", positions " +
                    pattern.name;
            fill(p, draw);
            lay_sequence(pattern, p, draw, p.batch);
            Layout layout;
            layout.few = few, layout.interleaved = draw.below(2);
            layout.query_block = 1 + draw.below(20), layout.key_block = 1 + draw.below(40);
            check(sets, p, layout);
          }
}

// A table on one other axis beside a contiguous sequence.
struct OnAnAxis {
  const Kind& kind;
  bool both, own;  // the sequence has a table of the kind, too; a relative query of its own meets it
  bool per_head, clamps, wide, few;

  std::string name() const {
    return std::string(kind.name) + (both ? " on both axes" : " on the other axis") + (own ? ", r of its own" : "") +
           (per_head ? ", per head" : "") + (clamps ? ", clamped" : "") + (wide ? ", a wide table" : "") +
           (few ? ", few queries" : "");
  }
  bool relative_keys() const { return kind.table == &Axis::relative_keys; }

  Problem sizes(Draw& draw) const {
    Problem p;
    p.batch = 2, p.queries = few ? 2 : 14 + draw.below(12), p.keys = few ? 260 : 20 + draw.below(25);
    p.origin = few ? -250 : draw.below(30) - 15;
    const Limits& limits = LIMITS[draw.below(3)];
    p.lowest = limits.lowest, p.highest = limits.highest;
    p.width = WIDTHS[draw.below(2)], p.value_width = WIDTHS[draw.below(2)];
    if (few) p.width -= draw.below(8), p.value_width -= draw.below(8);
    return p;
  }
  Problem problem(const Pattern& pattern, Draw& draw) const {
    Problem p = sizes(draw);
    p.axes.resize(2);
    Axis &sequence = p.sequence(), &axis = p.axes[1];
    draw_rows(axis.*kind.table, draw, per_head ? p.heads : 1, clamps, wide);
    if (own) axis.relative_width = WIDTHS[draw.below(3)];
    if (both) draw_rows(sequence.*kind.table, draw, draw.below(2) ? p.heads : 1, draw.below(2), false);
    if (both && relative_keys() && draw.below(2)) sequence.relative_width = WIDTHS[draw.below(3)];
    fill(p, draw);
    lay_axis(pattern, p, axis, draw, p.batch);
    return p;
  }
};

// Every kind of table on one other axis, whose positions follow any of the patterns.
void each_axis(std::vector<Kernels>& sets, Draw& draw) {
  for (const Kind& kind : KINDS)
    for (const bool both : {false, true})
      for (const bool own : {false, true})
        for (const bool per_head : {false, true})
          for (const bool clamps : {false, true})
            for (const bool wide : {false, true})
              for (const bool few : {false, true}) {
                const OnAnAxis table = {kind, both, own, per_head, clamps, wide, few};
                if (own && !table.relative_keys()) continue;  // nothing meets r
                const Pattern& pattern = PATTERNS[draw.below(Index(std::size(PATTERNS)))];
                place = table.name() + ", positions " + pattern.name;
                Layout layout;
                layout.few = few, layout.interleaved = draw.below(2);
                layout.query_block = 1 + draw.below(20), layout.key_block = 1 + draw.below(40);
                check(sets, table.problem(pattern, draw), layout);
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
void add_axisless_terms(Problem& p, Draw& draw) {
  const Index which = draw.below(3);
  if (which != 1) p.softcap = 0.5 + double(draw.below(8));
  if (which == 0) return;
  p.key_bias = draw.numbers(p.batch * p.heads * p.keys, 4.0f),
  p.key_shift = draw.numbers(p.batch * p.heads * p.queries, 4.0f);
}

// Every mask, and none, beside all tables; then with dropout; then few queries; in float32 and in bfloat16, with tables
// of both, and few queries in float16; each with what belongs to no axis, too.
void everything_at_once(std::vector<Kernels>& sets, Draw& draw, const Placement& placement) {
  const Index others = Index(placement.others.size());
  const Index queries = others ? 26 : 41, keys = others ? 41 : 67;  // more axes take the equation longer
  for (const Mask& mask : MASKS)
    for (const bool few : {false, true})
      for (const bool drops : {false, true})
        for (const Index element_type : {0, 1, 2})
          for (const bool more : {false, true}) {
            if (element_type == 2 && !few) continue;
            const bool narrow = element_type == 1;
            place = std::string("all tables, ") + mask.name + (drops ? ", dropout" : "") +
                    (few ? ", few queries" : "") +
                    (narrow         ? ", bfloat16"
                     : element_type ? ", float16"
                                    : "") +
                    (more ? ", capped" : "") + placement.name();
            Problem p = everything(draw, few ? 2 : queries, few ? 270 : keys, others);
            if (narrow) fill(p, draw, true);
            if (element_type == 2) p.key = rounded_to_halves(p.key), p.value = rounded_to_halves(p.value);
            if (narrow && !few) p.rounded = ROUNDED;
            if (drops) p.keep_probability = 0.7, p.seed = draw.word() >> 1U;
            if (draw.below(2)) p.highest = p.origin + p.keys / 2;
            mask.lay(p, draw);
            placement.lay(p, draw);
            if (more) add_axisless_terms(p, draw);
            Layout layout;
            layout.few = few, layout.element_type = few ? element_type : 0, layout.interleaved = draw.below(2);
            layout.wide_tables = draw.below(2);
            layout.query_block = 1 + draw.below(40), layout.key_block = 1 + draw.below(70);
            check(sets, p, layout);
          }
}

// Masks of whole blocks and of parts of them.
constexpr Mask BLOCK_MASKS[] = {
    {"documents",
     [](Problem& p, Draw& draw) {  // an id comes back; the first of the queries see the last of the keys
       const Index of_queries = 10 + draw.below(30), of_keys = 64 + draw.below(40);
       for (Index b = 0; b < p.batch; b++) {
         for (Index i = 0; i < p.queries; i++) p.query_segments.push_back((i + 30 * b) / of_queries % 2);
         for (Index j = 0; j < p.keys; j++) p.key_segments.push_back(1 - (j + 30 * b) / of_keys % 2);
       }
     }},
    {"padding before and after",
     [](Problem& p, Draw& draw) {
       for (Index b = 0; b < p.batch; b++) {
         const Index first = draw.below(100), count = draw.below(120);
         for (Index j = 0; j < p.keys; j++) p.key_mask.push_back(j >= first && j < first + count);
       }
     }},
    {"boolean blocks with others between them, and a single pair",
     [](Problem& p, Draw&) {
       p.mask_steps = {p.queries * p.keys, 0, p.keys, 1};
       for (Index b = 0; b < p.batch; b++)
         for (Index i = 0; i < p.queries; i++)
           for (Index j = 0; j < p.keys; j++)
             p.pair_mask.push_back(i / 64 % 2 == (j / 64 + b) % 2 || (b == 0 && i + j == 64));
     }},
    {"documents with padding",
     [](Problem& p, Draw&) {
       for (Index i = 0; i < p.batch * p.queries; i++) p.query_segments.push_back(i / 40);
       for (Index j = 0; j < p.batch * p.keys; j++) p.key_segments.push_back(j / 70), p.key_mask.push_back(j % 90 > 5);
     }},
    {"a float mask with blocks of -inf",
     [](Problem& p, Draw& draw) {
       p.mask_steps = {0, 0, p.keys, 1};
       p.added_mask = draw.numbers(p.queries * p.keys, 1.0f);
       for (Index i = 0; i < p.queries; i++)
         for (Index j = 0; j < p.keys; j++)
           if (i / 50 != j / 50 % 3) p.added_mask[i * p.keys + j] = -INFINITY;
     }},
};

// Each of them, with its blocks given or not: many queries and few, contiguous positions and explicit ones.
void each_block(std::vector<Kernels>& sets, Draw& draw) {
  for (const Mask& mask : BLOCK_MASKS)
    for (const Placement& placement : {Placement{nullptr, {}}, Placement{&IN_ANY_ORDER, {}}})
      for (const bool few : {false, true})
        for (const bool given : {false, true}) {
          const bool narrow = given && draw.below(2);
          place = std::string(mask.name) + (given ? ", blocks given" : "") + (few ? ", few queries" : "") +
                  (narrow ? ", bfloat16" : "") + placement.name();
          Problem p = everything(draw, few ? 2 : 100 + draw.below(60), 130 + draw.below(80), 0);
          if (narrow) fill(p, draw, true);
          if (narrow && !few) p.rounded = ROUNDED;
          if (draw.below(2)) p.highest = p.origin + p.keys / 2;
          mask.lay(p, draw);
          placement.lay(p, draw);
          Layout layout;
          layout.few = few, layout.element_type = few && narrow, layout.blocks = given;
          layout.query_block = 20 + draw.below(60), layout.key_block = 60 + draw.below(160);
          check(sets, p, layout);
        }
}

// The key heads of the backward pass' slots: equal without blocks; with them no slot costs more than one head above
// the mean, counted in visible blocks. A batch of one long and three short sequences, or of hidden ones.
void check_slot_heads() {
  place = "slots";
  constexpr Index BATCH = 4, HEADS = 6, BLOCKS = 32, KEYS = BLOCKS * called::MASK_BLOCK;
  for (const Index slots : {1, 3, 8}) {
    Call call = {};
    call.batch = BATCH, call.heads = 2 * HEADS, call.key_heads = HEADS, call.queries = call.keys = KEYS;
    call.lowest = called::UNLIMITED, call.highest = -called::UNLIMITED;
    const called::SlotHeads equal(call, slots, called::MASK_BLOCK, called::MASK_BLOCK);
    for (Index n = 0; n <= slots; n++)
      if (equal.first[n] != n * BATCH * HEADS / slots) fail("%ld begins at %ld", long(n), long(equal.first[n]));
    for (const Index shorter : {8, 32}) {
      std::vector<uint8_t> kept(KEYS * BATCH), blocks(BLOCKS * BATCH);
      std::vector<Index> costs(BATCH * HEADS);
      for (Index b = 0; b < BATCH; b++) {
        const Index visible = b ? BLOCKS / shorter : BLOCKS;
        for (Index n = 0; n < visible; n++) blocks[b * BLOCKS + n] = called::EVERYTHING;
        for (Index h = 0; h < HEADS; h++) costs[b * HEADS + h] = BLOCKS + BLOCKS * visible;
      }
      call.key_mask = kept.data(), call.key_mask_blocks = blocks.data();
      const called::SlotHeads slot_heads(call, slots, called::MASK_BLOCK, called::MASK_BLOCK);
      Index whole = 0, done = 0;
      for (const Index cost : costs) whole += cost;
      for (Index n = 0; n < slots; n++) {
        Index cost = 0;
        if (slot_heads.first[n] != done)
          fail("%ld begins at %ld, not at %ld", long(n), long(slot_heads.first[n]), long(done));
        for (; done < slot_heads.first[n + 1]; done++) cost += costs[done];
        if (cost > whole / slots + costs[0]) fail("%ld of %ld slots costs %ld", long(n), long(slots), long(cost));
      }
      if (done != BATCH * HEADS) fail("%ld heads are in slots", long(done));
    }
  }
}

// As many axes as a call may have.
void most_axes(std::vector<Kernels>& sets, Draw& draw) {
  Placement placement = {nullptr, {}};
  for (Index n = 1; n < called::MOST_AXES; n++) placement.others.push_back(&PATTERNS[n]);
  for (const bool few : {false, true}) {
    place = std::string("as many axes as there may be") + (few ? ", few queries" : "");
    Problem p = everything(draw, few ? 2 : 20, few ? 270 : 30, called::MOST_AXES - 1);
    placement.lay(p, draw);
    Layout layout;
    layout.few = few;
    check(sets, p, layout);
  }
}

// Widths and lengths on both sides of a vector and of a block.
void each_rotation(std::vector<Kernels>& sets, Draw& draw) {
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
          check(sets, turn);
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

// Contiguous and explicit positions, alone and with two other axes.
std::vector<Placement> placements() {
  return {{nullptr, {}},
          {&IN_ANY_ORDER, {}},
          {nullptr, {&ROWS_OF_A_GRID, &COLUMNS_OF_A_GRID}},
          {nullptr, {&SOME_OFF_GRID, &COLUMNS_OF_A_GRID}},
          {&IN_ANY_ORDER, {&ROWS_OF_A_GRID, &COLUMNS_OF_A_GRID}},
          {&IN_ANY_ORDER, {&SOME_OFF_GRID, &COLUMNS_OF_A_GRID}}};
}

void report(const Tally& of) {
  tally = nullptr, place = of.name;
  if (double(of.compared) > equation::MOST_NUMBERS) fail("%ld numbers, more than the bounds allow for", of.compared);
  std::printf("%s: %ld numbers within their bounds, the furthest at %.2g of its own\n", of.name.c_str(), of.compared,
              of.closest);
}

}  // namespace

int main(int count, char** given) {
  place = "suite";
  if (count != 2) fail("expected one argument, the library");
  void* library = dlopen(given[1], RTLD_NOW);  // NOLINT(clang-analyzer-optin.taint.GenericTaint): the caller's choice
  if (!library) fail("%s", dlerror());
  std::vector<Kernels> sets = kernels_of(library);
  Draw draw(1);
  check_philox();
  check_slot_heads();
  for (const Placement& placement : placements()) check_gradients(draw, placement);
  for (const bool narrow : {false, true}) each_table(sets, draw, narrow);
  each_pattern(sets, draw);
  each_axis(sets, draw);
  for (const Placement& placement : placements()) everything_at_once(sets, draw, placement);
  each_block(sets, draw);
  most_axes(sets, draw);
  each_rotation(sets, draw);
  for (const Kernels& kernels : sets) report(kernels.calls), report(kernels.in_bfloat16), report(kernels.rotations);
  return 0;
}

// The backward pass. A slot is some of the key heads, and a unit of work is a part of the keys of a slot. It goes
// through the queries of all heads that share these keys.
// Gradients of tables are summed per unit, over its key heads in order, and then over the units in order. Gradients of
// queries are summed over the parts in order. Slots and parts follow from the shape and the masks, so every number of
// threads gives the same bits.
#pragma once
#include "backward_tile.h"
#include "slot_heads.h"
#include "table_sums.h"

namespace RELATTN_SET {

constexpr Index MOST_COPIED = 4 * 1024 * 1024;  // floats of copies of the queries' gradients: 16 MiB

// The tables of an axis, one after the other.
constexpr Band Axis::* BANDS[] = {&Axis::relative_keys, &Axis::relative_queries, &Axis::relative_values, &Axis::bias};

// dq (number 0), or dr of axis number - 1, [B, Hq, Lq][width]. The first part of the keys adds to it, as the caller
// gave it: zeros. Each other part adds to a copy.
struct QueryGradient {
  float *at = nullptr, *copies = nullptr;  // `at` is null where it is not wanted
  Index width = 0, size = 0;

  QueryGradient() = default;
  QueryGradient(const Call& c, Index number)
      : at(number ? c.axis(number - 1).relative_query_gradient : c.query_gradient),
        width(number ? c.axis(number - 1).relative_width : c.width),
        size(at ? c.batch * c.heads * c.queries * width : 0) {}
  float* of(Index part) const { return part && at ? copies + (part - 1) * size : at; }
};

// The memory where units add up the gradients to which several of them add.
struct GradientSums {
  const Index slots;
  Index parts;
  QueryGradient queries[1 + MOST_AXES];
  TableSums tables[MOST_AXES][4];  // in the order of BANDS

  GradientSums(const Call& c, Workspace& workspace) : slots(slots_of(c)) {
    Index copy = 0;
    for (Index n = 0; n <= c.axes(); n++) queries[n] = QueryGradient(c, n), copy += queries[n].size;
    parts = parts_of(c, std::max(Index(1), copy));
    for (Index n = 0; n <= c.axes(); n++) queries[n].copies = workspace.next((parts - 1) * queries[n].size);
    for (Index n = 0; n < c.axes(); n++)
      for (Index t = 0; t < 4; t++) tables[n][t] = TableSums(c.axis(n).*BANDS[t], slots, parts, workspace);
  }

  static bool by_head(const Call& c) {
    for (Index n = 0; n < c.axes(); n++)
      for (const auto band : BANDS)
        if ((c.axis(n).*band).gradient && (c.axis(n).*band).heads > 1) return true;
    return false;
  }

 private:
  // Whether heads add to the same numbers. Then one slot has all of them, in order.
  static bool shares_mask_gradient(const Call& c) {
    return c.mask_gradient && ((c.batch > 1 && !c.mask_gradient_batch) || (c.heads > 1 && !c.mask_gradient_head));
  }
  // More than MOST_SLOTS where more heads have tables of their own.
  static Index slots_of(const Call& c) {
    if (shares_mask_gradient(c)) return 1;
    return by_head(c) ? c.key_heads : std::min(c.batch * c.key_heads, MOST_SLOTS);
  }
  // With few slots each slot divides its keys: every `parts`-th block of them goes to one part. The number of parts is
  // limited so that the copies of the queries' gradients stay small.
  Index parts_of(const Call& c, Index copy) const {
    if (c.mask_gradient && !c.mask_gradient_key) return 1;  // every key adds to the same numbers
    const Index block = rounded_up(c.key_block, PANEL);
    return std::max(Index(1), std::min({MOST_SLOTS / slots, (c.keys + block - 1) / block, 1 + MOST_COPIED / copy}));
  }
};

struct Backward {
  const Call& call;
  const Packed& packed;
  const BackwardTiles tiles;
  const GradientSums gradients;
  const bool one_head;         // a slot has one head of every batch element
  const SlotHeads slot_heads;  // else

  Backward(const Call& c, const Packed& p, Workspace& workspace)
      : call(c),
        packed(p),
        tiles(c),
        gradients(c, workspace),
        one_head(GradientSums::by_head(c) && gradients.slots > 1),
        slot_heads(c, one_head ? 1 : gradients.slots, tiles.query_block, tiles.key_block) {}

  Index units() const { return gradients.slots * gradients.parts; }

  // The key heads of a slot, in order: one head where tables belong to heads, else some of all of them.
  void run(Index number, float* scratch, Index floats) const {
    const Unit unit = {number / gradients.parts, number % gradients.parts};
    const Index group = call.heads / call.key_heads;
    clear(scratch, floats);
    Workspace at(scratch);
    const BackwardTiles::Scratch s(tiles, at);
    for (Index n = 0; n < call.axes(); n++)
      for (const TableSums& sums : gradients.tables[n])
        sums.clear(unit.slot, unit.part, one_head ? unit.slot * group : 0, one_head ? group : call.heads);
    if (one_head)
      for (Index b = 0; b < call.batch; b++) key_head(unit, b, unit.slot, s);
    else
      for (Index n = slot_heads.first[unit.slot]; n < slot_heads.first[unit.slot + 1]; n++)
        key_head(unit, n / call.key_heads, n % call.key_heads, s);
  }

  // The units of the next step: one query head each. They add the gradients of all parts in order, and multiply with
  // the scale where it is due.
  Index query_heads() const { return call.batch * call.heads; }
  void finish_queries(Index head) const {
    const Vector scale = splat(float(call.scale));
    for (Index n = 0; n <= call.axes(); n++) {
      const QueryGradient& gradient = gradients.queries[n];
      if (!gradient.at) continue;
      const Index count = call.queries * gradient.width;
      for (Index at = head * count; at < (head + 1) * count; at += LANES) {
        Vector sum = load(gradient.at + at);
        for (Index p = 1; p < gradients.parts; p++) sum += load(gradient.of(p) + at);
        store(gradient.at + at, sum * scale);
      }
    }
  }

  // The units of the last step: one row of a table's gradient each.
  Index rows_of_tables() const {
    Index all = 0;
    for (Index n = 0; n < call.axes(); n++)
      for (const auto band : BANDS) all += rows(call.axis(n).*band);
    return all;
  }
  void write_row(Index row) const {
    for (Index n = 0; n < call.axes(); n++)
      for (Index t = 0; t < 4; t++) {
        const Band& band = call.axis(n).*BANDS[t];
        // Only two sums still need the scale: those for relative queries, and those for relative keys from pairs.
        const bool pairs = BANDS[t] == &Axis::relative_keys && call.takes_pairs(call.axis(n), band);
        const bool unscaled = BANDS[t] == &Axis::relative_queries || pairs;
        if (row < rows(band)) return gradients.tables[n][t].write(band, row, unscaled ? float(call.scale) : 1.0f);
        row -= rows(band);
      }
  }

 private:
  static Index rows(const Band& band) { return band.gradient ? band.heads * band.count : 0; }

  struct Unit {
    Index slot, part;
  };

  TileSums sums_of(Unit unit, Index h) const {
    TileSums sums = {gradients.queries[0].of(unit.part), {}};
    for (Index n = 0; n < call.axes(); n++) {
      const auto of = [&](Index table) { return gradients.tables[n][table].of(unit.slot, unit.part, h); };
      sums.axes[n] = {gradients.queries[1 + n].of(unit.part), of(0), of(1), of(2), of(3)};
    }
    return sums;
  }

  // A copy's rows of the query heads of a key head are set to zero before its part adds to them.
  void clear_copies(Index part, Index b, Index key_head) const {
    const Index group = call.heads / call.key_heads, first = (b * call.heads + key_head * group) * call.queries;
    for (Index n = 0; n <= call.axes() && part > 0; n++) {
      const QueryGradient& gradient = gradients.queries[n];
      if (gradient.at)
        std::memset(gradient.of(part) + first * gradient.width, 0,
                    group * call.queries * gradient.width * sizeof(float));
    }
  }

  void key_head(Unit unit, Index b, Index key_head, const BackwardTiles::Scratch& s) const {
    const Index group = call.heads / call.key_heads, width = call.width, value_width = call.value_width;
    const Index query_block = tiles.query_block, key_block = tiles.key_block;
    const float scale = float(call.scale);
    const bool by_key = call.has(&Axis::relative_queries);
    clear_copies(unit.part, b, key_head);
    for (Index j0 = unit.part * key_block; j0 < call.keys; j0 += gradients.parts * key_block) {
      const Index columns = std::min(key_block, call.keys - j0);
      tiles.pack(b, key_head, j0, columns, s);
      std::memset(s.key, 0, columns * width * sizeof(float));
      std::memset(s.value, 0, columns * value_width * sizeof(float));
      if (by_key) std::memset(s.key_by_rows, 0, columns * width * sizeof(float));
      for (Index h = key_head * group; h < (key_head + 1) * group; h++) {
        const Head head(call, packed, b, h, {s.key_panels, s.value_panels, j0});
        const TileSums sums = sums_of(unit, h);
        const Index first = call.first_query(j0), end = call.end_query(j0, columns);
        for (Index i0 = first / query_block * query_block; i0 < end; i0 += query_block)
          tiles.run(head, sums, i0, std::min(query_block, call.queries - i0), j0, columns, s);
      }
      const Index n = (b * call.key_heads + key_head) * call.keys + j0;
      for (Index c = 0; c < columns; c++) {
        if (call.key_gradient)
          for (Index d = 0; d < width; d += LANES) {
            Vector x = load(s.key + c * width + d);
            if (call.takes_pairs()) x *= splat(scale);
            if (by_key) x += load(s.key_by_rows + c * width + d) * splat(scale);
            store(call.key_gradient + (n + c) * width + d, x);
          }
        if (call.value_gradient)
          std::memcpy(call.value_gradient + (n + c) * value_width, s.value + c * value_width,
                      value_width * sizeof(float));
      }
    }
  }
};

}  // namespace RELATTN_SET

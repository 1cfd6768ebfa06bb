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

// Where the gradients of an axis are added up.
struct AxisCopies {
  TableSums tables[4];    // in the order of BANDS
  float* relative_query;  // what the parts after the first add up, [parts - 1][B, Hq, Lq][width]
};

struct Backward {
  const Call& call;
  const Packed& packed;
  AxisCopies axes[MOST_AXES];
  const BackwardTiles tiles;
  const Index slots, parts;
  const bool one_head;         // a slot has one head of every batch element
  const SlotHeads slot_heads;  // else
  float* query_copies;         // what the parts after the first add up, [parts - 1][B, Hq, Lq][width]

  static bool by_head(const Call& c) {
    for (Index n = 0; n < c.axes(); n++)
      for (const auto band : BANDS)
        if ((c.axis(n).*band).gradient && (c.axis(n).*band).heads > 1) return true;
    return false;
  }
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
  static Index parts_of(const Call& c) {
    if (c.mask_gradient && !c.mask_gradient_key) return 1;  // every key adds to the same numbers
    const Index block = rounded_up(c.key_block, PANEL);
    Index copy = query_size(c);
    for (Index n = 0; n < c.axes(); n++) copy += relative_query_size(c, n);
    copy = std::max(Index(1), copy);
    return std::max(Index(1),
                    std::min({MOST_SLOTS / slots_of(c), (c.keys + block - 1) / block, 1 + MOST_COPIED / copy}));
  }
  static Index query_size(const Call& c) { return c.query_gradient ? c.batch * c.heads * c.queries * c.width : 0; }
  static Index relative_query_size(const Call& c, Index n) {
    const Axis& axis = c.axis(n);
    return axis.relative_query_gradient ? c.batch * c.heads * c.queries * axis.relative_width : 0;
  }
  // Floats of workspace that the units share.
  static Index sums(const Call& c) {
    const Index slots = slots_of(c), parts = parts_of(c);
    Index floats = room_for((parts - 1) * query_size(c));
    for (Index n = 0; n < c.axes(); n++) {
      floats += room_for((parts - 1) * relative_query_size(c, n));
      for (const auto band : BANDS) floats += room_for(TableSums::size(c.axis(n).*band, slots, parts));
    }
    return floats;
  }

  Backward(const Call& c, const Packed& p, float*& workspace)
      : call(c),
        packed(p),
        tiles(c),
        slots(slots_of(c)),
        parts(parts_of(c)),
        one_head(by_head(c) && slots > 1),
        slot_heads(c, one_head ? 1 : slots, tiles.query_block, tiles.key_block) {
    query_copies = next_part(workspace, (parts - 1) * query_size(c));
    for (Index n = 0; n < c.axes(); n++) {
      axes[n].relative_query = next_part(workspace, (parts - 1) * relative_query_size(c, n));
      for (Index t = 0; t < 4; t++) axes[n].tables[t] = TableSums(c.axis(n).*BANDS[t], slots, parts, workspace);
    }
  }

  Index units() const { return slots * parts; }
  Index scratch() const { return tiles.scratch(); }

  // The key heads of a slot, in order: one head where tables belong to heads, else some of all of them.
  void run(Index number, float* scratch) const {
    const Unit unit = {number / parts, number % parts};
    const Index group = call.heads / call.key_heads;
    clear(scratch, this->scratch());
    for (Index n = 0; n < call.axes(); n++)
      for (const TableSums& sums : axes[n].tables)
        sums.clear(unit.slot, unit.part, one_head ? unit.slot * group : 0, one_head ? group : call.heads);
    if (one_head)
      for (Index b = 0; b < call.batch; b++) key_head(unit, b, unit.slot, scratch);
    else
      for (Index n = slot_heads.first[unit.slot]; n < slot_heads.first[unit.slot + 1]; n++)
        key_head(unit, n / call.key_heads, n % call.key_heads, scratch);
  }

  // The units of the next step: one query head each. They add the gradients of all parts in order, and multiply with
  // the scale where it is due.
  Index query_heads() const { return call.batch * call.heads; }
  void finish_queries(Index n) const {
    finish(call.query_gradient, query_copies, n * call.queries * call.width, call.queries * call.width,
           query_size(call));
    for (Index axis = 0; axis < call.axes(); axis++) {
      const Index width = call.axis(axis).relative_width;
      finish(call.axis(axis).relative_query_gradient, axes[axis].relative_query, n * call.queries * width,
             call.queries * width, relative_query_size(call, axis));
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
        if (row < rows(band)) return axes[n].tables[t].write(band, row, unscaled ? float(call.scale) : 1.0f);
        row -= rows(band);
      }
  }

 private:
  static Index rows(const Band& band) { return band.gradient ? band.heads * band.count : 0; }

  void finish(float* gradient, const float* copies, Index first, Index count, Index copy) const {
    if (!gradient) return;
    const Vector scale = splat(float(call.scale));
    for (Index at = first; at < first + count; at += LANES) {
      Vector sum = load(gradient + at);
      for (Index p = 1; p < parts; p++) sum += load(copies + (p - 1) * copy + at);
      store(gradient + at, sum * scale);
    }
  }

  struct Unit {
    Index slot, part;
  };

  // The place where a part adds up the gradients of queries; null where they are not wanted.
  float* query_gradient(Index part) const {
    return part && call.query_gradient ? query_copies + (part - 1) * query_size(call) : call.query_gradient;
  }
  float* relative_query_gradient(Index n, Index part) const {
    float* const gradient = call.axis(n).relative_query_gradient;
    return part && gradient ? axes[n].relative_query + (part - 1) * relative_query_size(call, n) : gradient;
  }
  // The sums of the first part begin with zeros, as the caller gave them.
  void clear_queries(Index part, Index b, Index key_head) const {
    if (part == 0) return;
    const Index group = call.heads / call.key_heads, first = (b * call.heads + key_head * group) * call.queries;
    const Index rows = group * call.queries;
    if (float* to = query_gradient(part)) std::memset(to + first * call.width, 0, rows * call.width * sizeof(float));
    for (Index n = 0; n < call.axes(); n++)
      if (float* to = relative_query_gradient(n, part)) {
        const Index width = call.axis(n).relative_width;
        std::memset(to + first * width, 0, rows * width * sizeof(float));
      }
  }

  TileSums sums_of(Unit unit, Index h) const {
    TileSums sums = {query_gradient(unit.part), {}};
    for (Index n = 0; n < call.axes(); n++) {
      const auto of = [&](Index table) { return axes[n].tables[table].of(unit.slot, unit.part, h); };
      sums.axes[n] = {relative_query_gradient(n, unit.part), of(0), of(1), of(2), of(3)};
    }
    return sums;
  }

  void key_head(Unit unit, Index b, Index key_head, float* scratch) const {
    const BackwardTiles::Scratch s(tiles, scratch);
    const Index group = call.heads / call.key_heads, width = call.width, value_width = call.value_width;
    const Index query_block = tiles.query_block, key_block = tiles.key_block;
    const float scale = float(call.scale);
    const bool by_key = call.has(&Axis::relative_queries);
    clear_queries(unit.part, b, key_head);
    for (Index j0 = unit.part * key_block; j0 < call.keys; j0 += parts * key_block) {
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

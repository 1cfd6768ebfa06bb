// Keys and tables, packed once; every unit of work of a call reads them. And the place of one head's keys and tables.
#pragma once
#include "pair_biases.h"

namespace RELATTN_SET {

// The tables of an axis, transposed.
struct PackedAxis {
  Panels relative_keys, relative_queries, relative_values;
  RowPairs key_rows,
      value_rows;  // of the relative keys in the backward pass, of the relative values in the forward pass
};

struct Packed {
  // Panels [B, Hk][panel] of floats, or of pairs; null in the backward pass, where only one unit needs a block of keys.
  float* keys;
  Index key_head, key_row;  // numbers of a head, and of a row
  BFloat16x2* values;       // rows two by two, [B, Hk, Lk / 2][Dv]; null where they are read as they lie
  Index value_head;
  PackedAxis axes[MOST_AXES];
  Biases biases;
  PairBiases pairs;

  static Index size(const Call& call, bool backward) {
    const Index heads = call.batch * call.key_heads;
    Index floats = room_for(backward ? 0 : heads * key_head_of(call), backward ? 0 : heads * value_head_of(call),
                            Biases::size(call), PairBiases::size(call));
    for (Index n = 0; n < call.axes(); n++) {
      const Axis& axis = call.axis(n);
      const auto panels = [&](const Band& band) { return Panels::size(band, call.takes_pairs(axis, band)); };
      floats += room_for(panels(axis.relative_keys), Panels::size(axis.relative_queries, false),
                         backward ? panels(axis.relative_values) : 0);
      const Band& rows = backward ? axis.relative_keys : axis.relative_values;
      if (call.takes_pairs(axis, rows)) floats += room_for(RowPairs::size(rows));
    }
    return floats;
  }
  static Index key_row_of(const Call& call) {
    return call.takes_pairs() ? numbers_of<BFloat16x2>(call.width) : numbers_of<float>(call.width);
  }
  static Index key_head_of(const Call& call) { return rounded_up(call.keys, PANEL) * key_row_of(call); }
  static Index value_head_of(const Call& call) {
    return call.takes_pairs() ? rounded_up(call.keys, PANEL) / 2 * call.value_width : 0;
  }
};

INLINE Packed packed_in(const Call& call, bool backward, float*& workspace) {
  Packed packed = {};
  if (!backward) {
    const Index heads = call.batch * call.key_heads;
    packed.key_head = Packed::key_head_of(call), packed.key_row = Packed::key_row_of(call);
    packed.keys = next_part(workspace, heads * packed.key_head);
    packed.value_head = Packed::value_head_of(call);
    if (call.takes_pairs())
      packed.values = reinterpret_cast<BFloat16x2*>(next_part(workspace, heads * packed.value_head));
  }
  for (Index n = 0; n < call.axes(); n++) {
    const Axis& axis = call.axis(n);
    PackedAxis& to = packed.axes[n];
    const auto panels = [&](const Band& band) { return panels_of(band, call.takes_pairs(axis, band), workspace); };
    to.relative_keys = panels(axis.relative_keys);
    to.relative_queries = panels_of(axis.relative_queries, false, workspace);
    if (backward) to.relative_values = panels(axis.relative_values);
    const Band& rows = backward ? axis.relative_keys : axis.relative_values;
    (backward ? to.key_rows : to.value_rows) = row_pairs_of(rows, call.takes_pairs(axis, rows), workspace);
  }
  packed.biases = biases_of(call, workspace);
  packed.pairs = pair_biases_of(call, workspace);
  return packed;
}

// The units of packing: every panel of keys with its values, the biases of every head, the rows of biases of pairs, and
// every panel of the tables.
struct Packing {
  const Call& call;
  const Packed& packed;
  const Index keys, biases, pairs;

  Packing(const Call& c, const Packed& p)
      : call(c),
        packed(p),
        keys(p.keys ? c.batch * c.key_heads * (rounded_up(c.keys, PANEL) / PANEL) : 0),
        biases(p.biases.at ? c.sequence.bias.heads : 0),
        pairs(p.pairs.units()) {}

  Index units() const {
    Index all = keys + biases + pairs;
    for (Index n = 0; n < call.axes(); n++)
      each_table(n, [&](const auto& part, const Band& band) {
        all += part.count * band.heads;
        return false;
      });
    return all;
  }

  void run(Index unit) const {
    if (unit < keys) return panel(unit);
    unit -= keys;
    if (unit < biases) return packed.biases.expand(call, unit);
    unit -= biases;
    if (unit < pairs) return packed.pairs.fill(call, unit);
    unit -= pairs;
    bool done = false;
    for (Index n = 0; n < call.axes() && !done; n++)
      done = each_table(n, [&](const auto& part, const Band& band) {
        const Index of_table = part.count * band.heads;
        if (unit >= of_table) return unit -= of_table, false;
        return part.pack(band, unit), true;
      });
  }

 private:
  // Calls `what` for each table until one call returns true.
  template <class Do>
  bool each_table(Index n, Do what) const {
    const Axis& axis = call.axis(n);
    const PackedAxis& tables = packed.axes[n];
    return what(tables.relative_keys, axis.relative_keys) || what(tables.relative_queries, axis.relative_queries) ||
           what(tables.relative_values, axis.relative_values) || what(tables.key_rows, axis.relative_keys) ||
           what(tables.value_rows, axis.relative_values);
  }

  void panel(Index unit) const {
    const Index panels = rounded_up(call.keys, PANEL) / PANEL, n = unit / panels, p = unit % panels;
    const Index b = n / call.key_heads, head = n % call.key_heads, first = p * PANEL;
    const auto pack_as = [&](auto* keys) {
      pack_panel(call.key.of(b, head, 0), call.key.row, call.width, first, call.keys, nullptr,
                 keys + n * packed.key_head + first * packed.key_row);
    };
    if (!call.takes_pairs()) return pack_as(packed.keys);
    pack_as(reinterpret_cast<BFloat16x2*>(packed.keys));
    pair_rows(call.value.of(b, head, first), call.value.row, call.value_width,
              std::min(Index(PANEL), call.keys - first),
              packed.values + n * packed.value_head + first / 2 * call.value_width);
  }
};

// Keys of a key head as panels, in the backward pass values too. The first panel begins with key `first`. They hold
// floats, or pairs where the call takes them.
struct KeyPanels {
  const float *keys, *values;
  Index first;
};

// One head's table: its rows as they are, and packed as panels or two by two.
struct Table {
  const Band* band;
  const float *rows, *panels;
  bool pairs;  // what the panels hold
  const BFloat16x2* row_pairs;

  Table() = default;
  Table(const Band& of, const Panels& packed, const RowPairs& two, Index h)
      : band(&of),
        rows(of.rows ? of.rows + h * of.head : nullptr),
        panels(packed.at ? packed.at + (of.heads == 1 ? 0 : h) * packed.head : nullptr),
        pairs(packed.pairs),
        row_pairs(two.at ? two.at + (of.heads == 1 ? 0 : h) * two.head : nullptr) {}
};

// The tables of an axis for one head.
struct Tables {
  Table relative_keys, relative_queries, relative_values, bias;

  Tables() = default;
  Tables(const Axis& axis, const PackedAxis& packed, Index h)
      : relative_keys(axis.relative_keys, packed.relative_keys, packed.key_rows, h),
        relative_queries(axis.relative_queries, packed.relative_queries, {}, h),
        relative_values(axis.relative_values, packed.relative_values, packed.value_rows, h),
        bias(axis.bias, {}, {}, h) {}
};

// One query head: the places of its keys, tables and masks.
struct Head {
  const Call& call;
  Index b, h, key_head;
  KeyPanels panels;
  const BFloat16x2* value_pairs;  // two by two from key 0 on; null where they are read as they lie
  Tables axes[MOST_AXES];
  const float* biases;  // of every offset of contiguous positions
  Index bias_first;
  const PairBiases& pairs;

  // For the forward pass.
  Head(const Call& c, const Packed& packed, Index batch, Index head)
      : Head(c, packed, batch, head,
             {packed.keys + (batch * c.key_heads + head / (c.heads / c.key_heads)) * packed.key_head, nullptr, 0}) {
    if (packed.values) value_pairs = packed.values + (b * c.key_heads + key_head) * packed.value_head;
  }

  Head(const Call& c, const Packed& packed, Index batch, Index head, KeyPanels keys)
      : call(c),
        b(batch),
        h(head),
        key_head(head / (c.heads / c.key_heads)),
        panels(keys),
        value_pairs(nullptr),
        pairs(packed.pairs) {
    for (Index n = 0; n < c.axes(); n++) axes[n] = Tables(c.axis(n), packed.axes[n], h);
    biases = packed.biases.at ? packed.biases.at + (c.sequence.bias.heads == 1 ? 0 : h) * packed.biases.head : nullptr;
    bias_first = packed.biases.first;
  }

  const Tables& sequence() const { return axes[0]; }
  Index counted() const { return b * call.heads + h; }  // over the batch
};

}  // namespace RELATTN_SET

// What every unit of work of a call reads: keys and tables packed once; and where one head's lie.
#pragma once
#include "pair_biases.h"

namespace RELATTN_SET {

// The tables of an axis, transposed.
struct PackedAxis {
  Panels relative_keys, relative_queries, relative_values;
};

struct Packed {
  float* keys;  // panels [B, Hk][panel]; null in the backward pass, where one unit alone asks for a block of keys
  Index key_head;
  PackedAxis axes[MOST_AXES];
  Biases biases;
  PairBiases pairs;

  static Index size(const Call& call, bool backward) {
    Index floats = room_for(backward ? 0 : call.batch * call.key_heads * rounded_up(call.keys, PANEL) * call.width,
                            Biases::size(call), PairBiases::size(call));
    for (Index n = 0; n < call.axes(); n++) {
      const Axis& axis = call.axis(n);
      floats += room_for(Panels::size(axis.relative_keys), Panels::size(axis.relative_queries),
                         backward ? Panels::size(axis.relative_values) : 0);
    }
    return floats;
  }
};

INLINE Packed packed_in(const Call& call, bool backward, float*& workspace) {
  Packed packed = {};
  if (!backward) {
    packed.key_head = rounded_up(call.keys, PANEL) * call.width;
    packed.keys = next_part(workspace, call.batch * call.key_heads * packed.key_head);
  }
  for (Index n = 0; n < call.axes(); n++) {
    const Axis& axis = call.axis(n);
    PackedAxis& to = packed.axes[n];
    to.relative_keys = panels_of(axis.relative_keys, workspace);
    to.relative_queries = panels_of(axis.relative_queries, workspace);
    if (backward) to.relative_values = panels_of(axis.relative_values, workspace);
  }
  packed.biases = biases_of(call, workspace);
  packed.pairs = pair_biases_of(call, workspace);
  return packed;
}

// The units of packing: every panel of keys, every head's biases, every query's, every panel of the tables.
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
      each_table(n, [&](const Panels& panels, const Band& band) {
        all += panels.count * band.heads;
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
      done = each_table(n, [&](const Panels& panels, const Band& band) {
        const Index of_table = panels.count * band.heads;
        if (unit >= of_table) return unit -= of_table, false;
        return panels.pack(band, unit), true;
      });
  }

 private:
  // Until one says true.
  template <class Do>
  bool each_table(Index n, Do what) const {
    const Axis& axis = call.axis(n);
    const PackedAxis& tables = packed.axes[n];
    return what(tables.relative_keys, axis.relative_keys) || what(tables.relative_queries, axis.relative_queries) ||
           what(tables.relative_values, axis.relative_values);
  }

  void panel(Index unit) const {
    const Index panels = rounded_up(call.keys, PANEL) / PANEL, n = unit / panels, p = unit % panels;
    pack_panel(call.key.of(n / call.key_heads, n % call.key_heads, 0), call.key.row, call.width, p * PANEL, call.keys,
               packed.keys + n * packed.key_head + p * call.width * PANEL);
  }
};

// Keys, and in the backward pass values, of a key head as panels, of which the first begins with key `first`.
struct KeyPanels {
  const float *keys, *values;
  Index first;
};

// One head's table: its rows as they are, and as panels where they were packed.
struct Table {
  const Band* band;
  const float *rows, *panels;

  Table() = default;
  Table(const Band& of, const Panels& packed, Index h)
      : band(&of),
        rows(of.rows ? of.rows + h * of.head : nullptr),
        panels(packed.at ? packed.at + (of.heads == 1 ? 0 : h) * packed.head : nullptr) {}
};

// The tables of an axis that one head reads.
struct Tables {
  Table relative_keys, relative_queries, relative_values, bias;

  Tables() = default;
  Tables(const Axis& axis, const PackedAxis& packed, Index h)
      : relative_keys(axis.relative_keys, packed.relative_keys, h),
        relative_queries(axis.relative_queries, packed.relative_queries, h),
        relative_values(axis.relative_values, packed.relative_values, h),
        bias(axis.bias, {}, h) {}
};

// One query head: where its keys, tables and masks lie.
struct Head {
  const Call& call;
  Index b, h, key_head;
  KeyPanels panels;
  Tables axes[MOST_AXES];
  const float* biases;  // of every offset of two runs
  Index bias_first;
  const PairBiases& pairs;

  // Of the forward pass.
  Head(const Call& c, const Packed& packed, Index batch, Index head)
      : Head(c, packed, batch, head,
             {packed.keys + (batch * c.key_heads + head / (c.heads / c.key_heads)) * packed.key_head, nullptr, 0}) {}

  Head(const Call& c, const Packed& packed, Index batch, Index head, KeyPanels keys)
      : call(c), b(batch), h(head), key_head(head / (c.heads / c.key_heads)), panels(keys), pairs(packed.pairs) {
    for (Index n = 0; n < c.axes(); n++) axes[n] = Tables(c.axis(n), packed.axes[n], h);
    biases = packed.biases.at ? packed.biases.at + (c.sequence.bias.heads == 1 ? 0 : h) * packed.biases.head : nullptr;
    bias_first = packed.biases.first;
  }

  const Tables& sequence() const { return axes[0]; }
  Index counted() const { return b * call.heads + h; }  // over the batch
};

}  // namespace RELATTN_SET

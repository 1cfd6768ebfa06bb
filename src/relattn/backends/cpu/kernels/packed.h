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
  float* keys = nullptr;
  Index key_head = 0, key_row = 0;  // numbers of a head, and of a row
  BFloat16x2* values = nullptr;     // rows two by two, [B, Hk, Lk / 2][Dv]; null where they are read as they lie
  Index value_head = 0;
  PackedAxis axes[MOST_AXES];
  Biases biases;
  PairBiases pairs;

  Packed(const Call& call, bool backward, Workspace& workspace) {
    if (!backward) {
      const Index heads = call.batch * call.key_heads, rows = rounded_up(call.keys, PANEL);
      key_row = numbers_of(call.width, call.takes_pairs()), key_head = rows * key_row;
      keys = workspace.next(heads * key_head);
      value_head = call.takes_pairs() ? rows / 2 * call.value_width : 0;
      values = workspace.next<BFloat16x2>(heads * value_head);
    }
    for (Index n = 0; n < call.axes(); n++) {
      const Axis& axis = call.axis(n);
      PackedAxis& to = axes[n];
      const auto panels = [&](const Band& band) { return Panels(band, call.takes_pairs(axis, band), workspace); };
      to.relative_keys = panels(axis.relative_keys);
      to.relative_queries = Panels(axis.relative_queries, false, workspace);
      if (backward) to.relative_values = panels(axis.relative_values);
      const Band& rows = backward ? axis.relative_keys : axis.relative_values;
      (backward ? to.key_rows : to.value_rows) = RowPairs(rows, call.takes_pairs(axis, rows), workspace);
    }
    biases = Biases(call, workspace);
    pairs = PairBiases(call, workspace);
  }
};

// The units of packing: every panel of keys with its values, the biases of every head, the rows of biases of pairs, and
// every panel of the tables.
struct Packing {
  const Call& call;
  const Packed& packed;

  Index units() const {
    Index all = 0;
    each([&](Index count, const auto&) { all += count; });
    return all;
  }
  void run(Index unit) const {
    each([&](Index count, const auto& pack) {
      if (unit >= 0 && unit < count) pack(unit);
      unit -= count;
    });
  }

 private:
  // Calls what(units, pack) for each part; pack(unit) packs one of its units.
  template <class Do>
  void each(const Do& what) const {
    const Index panels = packed.keys ? call.batch * call.key_heads * (rounded_up(call.keys, PANEL) / PANEL) : 0;
    what(panels, [&](Index unit) { panel(unit); });
    what(packed.biases.heads, [&](Index h) { packed.biases.expand(call.sequence.bias, h); });
    what(packed.pairs.units(), [&](Index unit) { packed.pairs.fill(call, unit); });
    for (Index n = 0; n < call.axes(); n++) {
      const Axis& axis = call.axis(n);
      const PackedAxis& tables = packed.axes[n];
      const auto table = [&](const auto& part, const Band& band) {
        what(part.count * band.heads, [&](Index unit) { part.pack(band, unit); });
      };
      table(tables.relative_keys, axis.relative_keys), table(tables.key_rows, axis.relative_keys);
      table(tables.relative_queries, axis.relative_queries);
      table(tables.relative_values, axis.relative_values), table(tables.value_rows, axis.relative_values);
    }
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
        biases(packed.biases.of(h)),
        bias_first(packed.biases.first),
        pairs(packed.pairs) {
    for (Index n = 0; n < c.axes(); n++) axes[n] = Tables(c.axis(n), packed.axes[n], h);
  }

  const Tables& sequence() const { return axes[0]; }
  Index counted() const { return b * call.heads + h; }  // over the batch
};

}  // namespace RELATTN_SET

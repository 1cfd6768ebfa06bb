// A chunk of keys of a key head, for few queries. Keys and values are read where they lie. It computes the weights and
// the weighted sums.
#pragma once
#include <algorithm>

#include "dropout.h"
#include "lookup.h"
#include "masks.h"
#include "visible.h"
#include "workspace.h"

namespace RELATTN_SET {

constexpr Index CHUNK = 256;  // keys
constexpr Index NEAR = 64;    // keys that stay in the first-level cache while every row reads them

// The rows of a key head, the floats of each part of a row, in whole vectors, and the memory for a chunk. partial: the
// result of a chunk for a row.
struct FewRows {
  const Call& call;
  const Index rows, width, value_width, partial;
  float *query, *weights, *edge;     // [rows][width], [rows][CHUNK], [width]
  float* relative_query[MOST_AXES];  // [rows][relative_width]; null where r is q

  FewRows(const Call& c, Workspace& at)
      : call(c),
        rows(c.heads / c.key_heads * c.queries),
        width(rounded_up(c.width, LANES)),
        value_width(rounded_up(c.value_width, LANES)),
        partial(value_width + LANES),
        query(at.next(rows * width)),
        weights(at.next(rows * CHUNK)),
        edge(at.next(rounded_up(c.sequence.relative_queries.width, LANES))) {
    for (Index n = 0; n < call.axes(); n++) relative_query[n] = at.next(rows * relative_width(n));
  }
  Index relative_width(Index n) const { return rounded_up(call.axis(n).relative_width, LANES); }
};

// A chunk of keys of one key head, and the rows that share it. Element: the type of the numbers of keys and values.
template <class Element>
struct FewKeys : FewRows {
  const Index b, key_head, begin, end;

  FewKeys(const Call& c, Index batch, Index head, Index from, Index to, Workspace at)
      : FewRows(c, at), b(batch), key_head(head), begin(from), end(to) {}

  // The products with the keys, while these are near.
  void score() const {
    const float scale = float(call.scale);
    // Between two blocks that a row sees, one that it does not see has no products.
    if (call.has_blocks()) std::fill(weights, weights + rows * CHUNK, -INFINITY);
    for (Index r = 0; r < rows; r++) {
      scaled(call.query.of(b, head(r), place(r)), call.width, scale, query + r * width);
      for (Index n = 0; n < call.axes(); n++)
        if (relative_query[n])
          scaled(call.axis(n).relative_query.of(b, head(r), place(r)), call.axis(n).relative_width, scale,
                 relative_query[n] + r * relative_width(n));
    }
    for (Index near = begin; near < end; near += NEAR)
      for (Index r = 0; r < rows; r++) {
        const KeyRange range = visible_keys(r, near, std::min(near + NEAR, end));
        dot_products<From::MEMORY>(query + r * width, key(range.from), call.key.row, call.width, range.count(),
                                   of(r) + range.from - begin);
      }
    if (call.sequence.relative_queries.rows && !call.sequence.positions.are_explicit())
      for (Index r = 0; r < rows; r++) add_relative_queries(r, visible_keys(r, begin, end));
  }

  // S += scale * r . RK[d], for the keys from .. to - 1.
  void add_relative_keys(Index from, Index to) const {
    for (Index r = 0; r < rows; r++) add_relative_keys(r, visible_keys(r, from, to));
  }

  // The other terms, the weights, and the weighted sums of the values.
  void attend(float* to) const {
    for (Index r = 0; r < rows; r++) finish(r, to + r * partial);
    for (Index near = begin; near < end; near += NEAR)
      for (Index r = 0; r < rows; r++) {
        const KeyRange range = visible_keys(r, near, std::min(near + NEAR, end));
        add_rows(of(r) + range.from - begin, value(range.from), call.value.row, call.value_width, range.count(),
                 to + r * partial);
      }
  }

 private:
  // The keys from .. to - 1.
  struct KeyRange {
    Index from, to;
    Index count() const { return to - from; }
  };

  Index head(Index r) const { return key_head * (call.heads / call.key_heads) + r / call.queries; }
  Index place(Index r) const { return r % call.queries; }
  float* of(Index r) const { return weights + r * CHUNK; }  // of the key `begin`
  const Element* key(Index j) const { return call.key.elements<Element>(b, key_head, j); }
  const Element* value(Index j) const { return call.value.elements<Element>(b, key_head, j); }

  // The keys of from .. to - 1 that row r sees: by their blocks, and by their offset; for explicit positions, from the
  // first to the last.
  KeyRange visible_keys(Index r, Index from, Index to) const {
    if (call.has_blocks()) {
      const Columns columns = Visible(call, b, head(r), place(r), 1).keys(from, to - from).columns;
      to = from + columns.stop, from = std::min(from + columns.from, to);
    }
    const Positions& positions = call.sequence.positions;
    if (positions.limited()) {
      const Range visible = positions.visible_to(*query_position(call.sequence, r));
      const Index* keys = positions.keys(b);
      while (from < to && !visible.has(keys[from])) from++;
      while (from < to && !visible.has(keys[to - 1])) to--;
      return {from, to};
    }
    const Index i = place(r), first = std::min(std::max(from, call.first_key(i)), to);
    return {first, std::max(first, std::min(to, call.end_key(i, 1)))};
  }

  // The part of `range` for which a table has rows: there t = corner + j lies inside the table.
  static KeyRange inside(const Band& band, Index corner, KeyRange range) {
    const Index from = std::min(std::max(-corner, range.from), range.to);
    return {from, std::max(from, std::min(band.count - corner, range.to))};
  }
  Index corner(const Band& band, Index r) const { return call.origin - place(r) - band.first; }
  const float* row(const Band& band, Index r, Index t) const { return band.at(head(r), t); }

  // The other terms of row r's scores, and then its weights. The chunk's maximum and total are written beside `to`.
  void finish(Index r, float* to) const {
    const KeyRange range = visible_keys(r, begin, end);
    if (call.sequence.bias.rows && !call.sequence.positions.are_explicit()) add_bias(r, range);
    for (Index n = call.first_explicit(); n < call.axes(); n++) add_explicit(n, r, range);
    float* row = of(r) + range.from - begin;
    cap_and_bias(call, b, head(r), place(r), range.from, range.count(), row, nullptr);
    mask_scores(call, b, head(r), place(r), range.from, range.to, row);
    const float most = largest_of(row, range.count()), finite = most == -INFINITY ? 0.0f : most;
    for (Index c = 0; c < range.count(); c += LANES) {
      const Index n = std::min(range.count() - c, Index(LANES));
      const Vector p = exponential(load_part(row + c, n) - splat(finite));
      store_part(row + c, n, p);
    }
    const float sum = total(row, 0, range.count());
    if (call.drops()) drop(r);
    std::memset(to, 0, value_width * sizeof(float));
    to[value_width] = most, to[value_width + 1] = sum;
    if (call.sequence.relative_values.rows && !call.sequence.positions.are_explicit())
      add_relative_values(r, range, to);
    for (Index n = call.first_explicit(); n < call.axes(); n++)
      if (call.axis(n).relative_values.rows) add_explicit_values(call.axis(n), r, range, to);
  }

  void drop(Index r) const {
    const Index columns = rounded_up(end - begin, LANES);
    Dropout(call).each(b, head(r), place(r), 1, begin, 0, columns, [&](Index, Index column, Vector factor) {
      store(of(r) + column, load(of(r) + column) * factor);
    });
  }

  // The relative query of axis n.
  const float* relative(Index n, Index r) const {
    return relative_query[n] ? relative_query[n] + r * relative_width(n) : query + r * width;
  }

  // The rows of a table that row r's visible keys look up, by explicit positions.
  struct TableRows {
    int32_t row[CHUNK];
    Covered covered;
    // Whether the covered rows are few enough to multiply all of them, one after the other.
    bool close() const { return covered.count() <= CHUNK; }
  };
  const Index* query_position(const Axis& axis, Index r) const { return axis.positions.queries(b) + place(r); }
  void look_up(const Axis& axis, const Band& band, Index r, KeyRange range, TableRows& table_rows) const {
    int32_t near[CHUNK];
    table_rows.covered = RELATTN_SET::look_up<1>(band, query_position(axis, r), 1, axis.positions.keys(b) + range.from,
                                                 range.count(), near, table_rows.row, CHUNK);
  }

  // S += scale * (r . RK[d] + RQ[d] . k) + b[d] for axis n, each pair with the rows of its own offset.
  void add_explicit(Index n, Index r, KeyRange range) const {
    const Axis& axis = call.axis(n);
    float products[CHUNK];
    float* weights = of(r) + range.from - begin;
    TableRows table_rows;
    // Adds term(c, t) to the score of key range.from + c, whose row is t.
    const auto add_terms = [&](const auto& term) {
      for (Index c = 0; c < range.count(); c++)
        if (const Index t = table_rows.row[c]; t != NO_ROW) weights[c] += term(c, t);
    };
    if (const Band& band = axis.relative_keys; band.rows) {
      look_up(axis, band, r, range, table_rows);
      const Index first = table_rows.covered.first, width = band.width;
      if (table_rows.close()) {
        if (table_rows.covered.count() > 0)
          dot_products(relative(n, r), row(band, r, first), width, width, table_rows.covered.count(), products);
        add_terms([&](Index, Index t) { return products[t - first]; });
      } else {
        const auto row_of = [&, rows = row(band, r, 0)](Index c) {
          return rows + std::max(table_rows.row[c], 0) * width;
        };
        dot_each(relative(n, r), row_of, width, range.count(), products);
        add_terms([&](Index c, Index) { return products[c]; });
      }
    }
    if (const Band& band = axis.relative_queries; band.rows) {
      look_up(axis, band, r, range, table_rows);
      const float scale = float(call.scale);
      add_terms([&](Index c, Index t) { return scale * dot(row(band, r, t), key(range.from + c), band.width); });
    }
    if (const Band& band = axis.bias; band.rows) {
      look_up(axis, band, r, range, table_rows);
      add_terms([rows = row(band, r, 0)](Index, Index t) { return rows[t]; });
    }
  }

  // sum_j weight_j * RV[d].
  void add_explicit_values(const Axis& axis, Index r, KeyRange range, float* to) const {
    const Band& band = axis.relative_values;
    const Index count = range.count();
    const float* weights = of(r) + range.from - begin;
    TableRows table_rows;
    float sums[CHUNK];
    look_up(axis, band, r, range, table_rows);
    if (table_rows.close()) {
      const Index first = table_rows.covered.first;
      std::fill(sums, sums + CHUNK, 0.0f);
      for (Index c = 0; c < count; c++)
        if (table_rows.row[c] != NO_ROW) sums[table_rows.row[c] - first] += weights[c];
      if (table_rows.covered.count() > 0)
        add_rows(sums, row(band, r, first), band.width, band.width, table_rows.covered.count(), to);
    } else {
      const float* rows = row(band, r, 0);
      for (Index c = 0; c < count; c++) sums[c] = table_rows.row[c] == NO_ROW ? 0.0f : weights[c];
      add_each(sums, [&](Index c) { return rows + table_rows.row[c] * band.width; }, band.width, count, to);
    }
  }

  void add_relative_keys(Index r, KeyRange range) const {
    const Band& band = call.sequence.relative_keys;
    const float* x = relative(0, r);
    const Index corner = this->corner(band, r);
    const KeyRange in = inside(band, corner, range);
    float products[CHUNK];
    const float* rows = row(band, r, corner + in.from);
    if (band.head)
      dot_products<From::MEMORY>(x, rows, band.width, band.width, in.count(), products);
    else
      dot_products(x, rows, band.width, band.width, in.count(), products);
    add(r, in, products);
    if (band.clamps) {
      if (in.from > range.from) add(r, {range.from, in.from}, dot(x, row(band, r, 0), band.width));
      if (in.to < range.to) add(r, {in.to, range.to}, dot(x, row(band, r, band.count - 1), band.width));
    }
  }

  // S += scale * RQ[d] . k.
  void add_relative_queries(Index r, KeyRange range) const {
    const Band& band = call.sequence.relative_queries;
    const Index corner = this->corner(band, r);
    const KeyRange in = inside(band, corner, range);
    float* weights = of(r) - begin;
    const float scale = float(call.scale);
    for (Index j = in.from; j < in.to; j++) weights[j] += scale * dot(row(band, r, corner + j), key(j), band.width);
    if (band.clamps) {
      add_edge(r, row(band, r, 0), {range.from, in.from});
      add_edge(r, row(band, r, band.count - 1), {in.to, range.to});
    }
  }
  void add_edge(Index r, const float* row, KeyRange range) const {
    if (range.count() <= 0) return;
    float products[CHUNK];
    scaled(row, call.width, float(call.scale), edge);
    dot_products(edge, key(range.from), call.key.row, call.width, range.count(), products);
    add(r, range, products);
  }

  // S += b[d].
  void add_bias(Index r, KeyRange range) const {
    const Band& band = call.sequence.bias;
    const Index corner = this->corner(band, r);
    const KeyRange in = inside(band, corner, range);
    const float* rows = row(band, r, 0);
    add(r, in, rows + corner + in.from);
    if (band.clamps) add(r, {range.from, in.from}, rows[0]), add(r, {in.to, range.to}, rows[band.count - 1]);
  }

  // sum_j weight_j * RV[d].
  void add_relative_values(Index r, KeyRange range, float* to) const {
    const Band& band = call.sequence.relative_values;
    const Index corner = this->corner(band, r);
    const KeyRange in = inside(band, corner, range);
    const float* weights = of(r) - begin;
    add_rows(weights + in.from, row(band, r, corner + in.from), band.width, band.width, in.count(), to);
    if (!band.clamps) return;
    const float before = total(weights, range.from, in.from), beyond = total(weights, in.to, range.to);
    add_rows(&before, row(band, r, 0), 0, band.width, 1, to);
    add_rows(&beyond, row(band, r, band.count - 1), 0, band.width, 1, to);
  }

  void add(Index r, KeyRange range, const float* terms) const {
    float* weights = of(r) + range.from - begin;
    for (Index c = 0; c < range.count(); c++) weights[c] += terms[c];
  }
  void add(Index r, KeyRange range, float term) const {
    float* weights = of(r) - begin;
    for (Index j = range.from; j < range.to; j++) weights[j] += term;
  }
};

}  // namespace RELATTN_SET

// Few queries, as when a token is decoded. Keys and values are read where they lie, once for all queries that share
// them.
// A unit of work is a chunk of keys of one batch element, for all heads in turn. The same chunk of the next batch
// element comes next. So the rows of a shared table stay in the cache. A row is a query of a head. For every row a
// chunk leaves its largest score m, the sum of e^(S - m), and the sum of e^(S - m) (v + RV). Chunks follow from the
// shape and are merged in their order, so every number of threads gives the same bits.
#pragma once
#include "few_keys.h"

namespace RELATTN_SET {

struct Few {
  const Call& call;
  Workspace counted;
  const FewRows of_head;    // without memory
  const Index own, chunks;  // floats of scratch for a key head, and chunks of its keys
  float* partials;          // [batch, chunks, heads, queries][partial]

  Few(const Call& c, Workspace& workspace)
      : call(c),
        of_head(c, counted),
        own(counted.floats()),
        chunks((c.keys + CHUNK - 1) / CHUNK),
        partials(workspace.next(chunks * merges() * of_head.partial)) {}

  Index scratch() const { return call.key_heads * own; }
  Index units() const { return call.batch * chunks; }
  Index merges() const { return call.batch * call.heads * call.queries; }

  void run(Index unit, float* scratch) const {
    const Index b = unit % call.batch, chunk = unit / call.batch;  // batch elements share the tables, too
    if (call.element_type == 1)
      run<BFloat16>(b, chunk, scratch);
    else if (call.element_type == 2)
      run<Half>(b, chunk, scratch);
    else
      run<float>(b, chunk, scratch);
  }

  // All heads, one after the other. Between keys and values they read the same few rows of a table that they share,
  // while these are near.
  template <class Element>
  void run(Index b, Index chunk, float* scratch) const {
    const Index begin = chunk * CHUNK, end = std::min(begin + CHUNK, call.keys);
    const auto head = [&](Index h) { return FewKeys<Element>(call, b, h, begin, end, Workspace(scratch + h * own)); };
    for (Index h = 0; h < call.key_heads; h++) head(h).score();
    const Band& band = call.sequence.relative_keys;
    const Index step = band.head ? CHUNK : NEAR;  // a table per head is read once
    if (band.rows && !call.sequence.positions.are_explicit())
      for (Index near = begin; near < end; near += step)
        for (Index h = 0; h < call.key_heads; h++) head(h).add_relative_keys(near, std::min(near + step, end));
    float* to = partials + (b * chunks + chunk) * call.heads * call.queries * of_head.partial;
    for (Index h = 0; h < call.key_heads; h++) head(h).attend(to + h * of_head.rows * of_head.partial);
  }

  // Row n of [batch, heads, queries], merged from all its chunks.
  void merge(Index n) const {
    const Index all = call.heads * call.queries, b = n / all, step = all * of_head.partial;
    const float* first = partials + b * chunks * step + n % all * of_head.partial;
    float maximum = -INFINITY, total = 0.0f;
    for (Index c = 0; c < chunks; c++) maximum = std::max(maximum, first[c * step + of_head.value_width]);
    const float finite = maximum == -INFINITY ? 0.0f : maximum;
    float* output = call.output + n * call.value_width;
    std::memset(output, 0, call.value_width * sizeof(float));
    for (Index c = 0; c < chunks; c++) {
      const float* from = first + c * step;
      const float factor = std::exp(from[of_head.value_width] - finite);
      total += factor * from[of_head.value_width + 1];
      for (Index d = 0; d < call.value_width; d++) output[d] += factor * from[d];
    }
    const float factor = call.finish_row(n, maximum, total);
    for (Index d = 0; d < call.value_width; d++) output[d] *= factor;
  }
};

}  // namespace RELATTN_SET

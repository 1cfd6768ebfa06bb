// The biases of explicit axes, written out for every pair of one batch element. They are used where a whole batch
// shares them. Then no group looks up a bias for its scores. The scores start from these numbers, as from a float mask.
#pragma once
#include "strips.h"

namespace RELATTN_SET {

struct PairBiases {
  float* at = nullptr;  // [heads][rows][step]: Lq and Lk rounded up to whole groups and panels, with zeros beyond them
  Index heads = 0, rows = 0, step = 0;

  PairBiases() = default;
  PairBiases(const Call& call, Workspace& workspace) {
    if (!serve(call)) return;
    heads = 1;
    for (Index n = call.first_explicit(); n < call.axes(); n++)
      if (call.axis(n).bias.rows && call.axis(n).bias.heads > 1) heads = call.heads;
    rows = rounded_up(call.queries, ROWS);
    step = rounded_up(call.keys, PANEL);
    at = workspace.next(heads * rows * step);
  }

  // The units of work: one row of a head each.
  Index units() const { return heads * rows; }
  void fill(const Call& call, Index unit) const {
    const Index h = unit / rows, i = unit % rows;
    float* row = at + unit * step;
    std::memset(row, 0, step * sizeof(float));
    for (Index n = call.first_explicit(); n < call.axes(); n++)
      if (call.axis(n).bias.rows && i < call.queries) add(call.axis(n), call.keys, h, i, row);
  }

  // The numbers from which the scores of the queries from i on and the keys from j on start.
  Start start(Index h, Index i, Index j) const { return {at + ((heads == 1 ? 0 : h) * rows + i) * step + j, step}; }

 private:
  // Whether they are used: only if they take no more memory than the queries in float32.
  static bool serve(const Call& call) {
    bool any = false;
    for (Index n = call.first_explicit(); n < call.axes(); n++) {
      const Axis& axis = call.axis(n);
      if (!axis.bias.rows) continue;
      if (axis.positions.query_batch || axis.positions.key_batch) return false;
      any = true;
    }
    return any && call.batch > 1 && call.keys <= call.batch * call.width;
  }
  static void add(const Axis& axis, Index keys, Index h, Index i, float* row) {
    const Band& band = axis.bias;
    const float* rows = band.at(h, 0);
    const Index position = axis.positions.query[i];
    for (Index j = 0; j < keys; j++) {
      const Index t = band.row_of(wrapped_difference(axis.positions.key[j], position));
      if (t != NO_ROW) row[j] += rows[t];
    }
  }
};

}  // namespace RELATTN_SET

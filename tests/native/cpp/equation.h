// The equation of docs/equation.md and its gradients, pair by pair in float64, beside a bound for what float32 may be
// off.
//
// Where the bound comes from. Inputs are floats, so all that differs is rounding, and to first order
//
//   a sum of n terms in float32      (C * sqrt(n) + 2) * eps * M  +  the sum of what the terms themselves are off
//   a score S                        that of its sum
//   a capped score c tanh(S / c)     slope * (that of S, and 2 eps of |S|) + 6 eps of it; slope = 1 - tanh^2, which is
//     off by 2 |tanh| slope / c times the same, and by 8 eps of it
//   a score S + a_j - c_i            that of S, and eps of its size and of |a_j - c_i|
//   a weight P = e^(S - max) / total relative: off_j + sum_j P_j off_j + C * eps * sqrt(4 n) + 2 * eps
//     with off_j                     that of S_j, half an eps of |S_j - max|, 2.6 eps for e^x
//   dS' = P * (dP - delta)           by the product rule, and so dS = dS' * slope
//   P or dS in a product             where products read them in bfloat16, 2^-8 of it more: half a unit of its last
//   place
//
// An axis brings terms to these sums, and no rule of its own: r_c . RK_c, RQ_c . k and b_c to S, RV_c to O and to dP.
//
// The 2.6 eps are derived in tests/native/test_exponential.py. C and M are those of tests/oracle/budget.py.
// C = sqrt(ln(2 N / p)): of N numbers compared, a right one is refused with chance p. M is the size of the partial
// sums: terms of one sign grow towards the sum, those of random sign like the root of the sum of their squares, and M
// is the larger. The 2 eps are three roundings that all terms may share: of the scale, of 1 / total, and of the number
// as it is stored. The 4 roundings for each of n keys in a total are those of the sum itself, and three where a larger
// score comes and shrinks what was there.
#pragma once
#include "problem.h"

namespace equation {

constexpr double EPS = 1.0 / 8388608;  // 2^-23
constexpr double MOST_NUMBERS = 16777216, REFUSAL_CHANCE = 1e-9;
inline const double C = std::sqrt(std::log(2 * MOST_NUMBERS / REFUSAL_CHANCE));

// Philox4x32-10 (Salmon et al. 2011): the four words of a counter under a key.
inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> x, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    const uint64_t first = uint64_t(0xD2511F53) * x[0], second = uint64_t(0xCD9E8D57) * x[2];
    x = {uint32_t(second >> 32U) ^ x[1] ^ key[0], uint32_t(second), uint32_t(first >> 32U) ^ x[3] ^ key[1],
         uint32_t(first)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return x;
}

// What dropout multiplies the weight of pair (i, j) of head n with, heads counted over the batch.
inline double factor(const Problem& p, Index n, Index i, Index j) {
  if (p.keep_probability >= 1.0) return 1.0;
  const auto words =
      philox({uint32_t(j), uint32_t(i / 4), uint32_t(n), 0}, {uint32_t(p.seed), uint32_t(p.seed >> 32U)});
  return words[i % 4] < p.keep_probability * 4294967296.0 ? 1.0 / p.keep_probability : 0.0;
}

// A sum of products, and how far a float32 may lie from it.
struct Sum {
  double value = 0.0, squares = 0.0, off = 0.0;  // squares: the sum of the terms' squares; off: of what they are off
  double terms = 0.0;

  void add(double term, double term_off = 0.0) { value += term, squares += term * term, off += term_off, terms += 1.0; }
  double bound() const {
    return off + EPS * (C * std::sqrt(terms) + 2.0) * std::max(std::abs(value), std::sqrt(squares));
  }
};
using Sums = std::vector<Sum>;

// By what stands on one axis.
struct AxisGradients {
  Sums relative_query, relative_keys, relative_queries, relative_values, bias;
};

struct Answers {
  Sums output, query, key, value, mask, key_bias;  // the output, and gradients by the others
  std::vector<AxisGradients> axes;
  std::vector<double> lse, lse_bound;
};

// One row of queries: adds what it brings to the answers.
class Row {
 public:
  Row(const Problem& problem, Answers& answers, Index batch, Index head, Index query)
      : p(problem),
        to(answers),
        b(batch),
        h(head),
        i(query),
        key_head(head / (problem.heads / problem.key_heads)),
        row((batch * problem.heads + head) * problem.queries + query) {}

  void run() {
    for (Index j = 0; j < p.keys; j++)
      if (p.sees(b, h, i, j)) seen.push_back(pair(j));
    if (seen.empty()) {
      to.lse[row] = -INFINITY;
      return;
    }
    softmax();
    Sum delta;
    for (Index d = 0; d < p.value_width; d++) {
      const Sum& output = to.output[row * p.value_width + d] = output_of(d);
      const double by_output = p.output_gradient[row * p.value_width + d];
      delta.add(by_output * output.value, std::abs(by_output) * output.bound());
    }
    delta.add(-double(p.lse_gradient[row]));
    for (const Pair& pair : seen) go_back(pair, delta);
  }

 private:
  // Where a pair's rows of an axis' tables begin; -1 where nothing holds.
  struct Rows {
    Index keys, queries, values, bias;
  };
  struct Pair {
    Index j = 0;
    double factor = 1.0, score = 0.0, off = 0.0;  // of dropout; S', and what e^(S' - max) is off
    double slope = 1.0, slope_off = 0.0;          // of the cap
    double weight = 0.0, relative = 0.0;          // P, and what it is off, relative to it
    Index key = 0, value = 0;                     // where they begin
    std::vector<Rows> axes;
  };
  // A gradient by a score, and what it is off.
  struct Change {
    double value, off;
    void times(double number, Sum& sum) const { sum.add(value * number, off * std::abs(number)); }
    Change in_products(double rounded) const { return {value, off + std::abs(value) * rounded}; }
  };

  const Problem& p;
  Answers& to;
  const Index b, h, i, key_head, row;
  std::vector<Pair> seen;

  Index query_at() const { return row * p.width; }
  Index relative_width(const Axis& axis) const { return axis.relative_width ? axis.relative_width : p.width; }
  const Floats& relative_query(const Axis& axis) const { return axis.relative_width ? axis.relative_query : p.query; }

  // S = scale * (q . k + sum_c (r_c . RK_c[d_c] + RQ_c[d_c] . k)) + sum_c b_c[d_c];
  // S' = softcap * tanh(S / softcap) + a - c + mask.
  Pair pair(Index j) const {
    Pair pair;
    const Index key = (b * p.key_heads + key_head) * p.keys + j;
    pair.j = j, pair.factor = factor(p, b * p.heads + h, i, j);
    pair.key = key * p.width, pair.value = key * p.value_width;
    Sum score;
    for (Index k = 0; k < p.width; k++) score.add(p.scale * p.query[query_at() + k] * p.key[pair.key + k]);
    for (const Axis& axis : p.axes) {
      const Index d = p.offset(axis, b, i, j);
      pair.axes.push_back({axis.relative_keys.row(h, d), axis.relative_queries.row(h, d),
                           axis.relative_values.row(h, d), axis.bias.row(h, d)});
      add_terms(axis, pair.axes.back(), pair.key, score);
    }
    const bool looks = p.softcap > 0.0 || !p.key_bias.empty();  // else the mask is one more term of the sum
    if (!looks && !p.added_mask.empty()) score.add(p.added_mask[p.mask_at(b, h, i, j)]);
    pair.score = score.value, pair.off = score.bound();
    if (looks) go_above_the_cap(pair);
    return pair;
  }
  // Those of an axis. key: where k begins.
  void add_terms(const Axis& axis, const Rows& rows, Index key, Sum& score) const {
    const Index at = row * relative_width(axis);
    for (Index k = 0; rows.keys >= 0 && k < relative_width(axis); k++)
      score.add(p.scale * relative_query(axis)[at + k] * axis.relative_keys.rows[rows.keys + k]);
    for (Index k = 0; rows.queries >= 0 && k < p.width; k++)
      score.add(p.scale * axis.relative_queries.rows[rows.queries + k] * p.key[key + k]);
    if (rows.bias >= 0) score.add(axis.bias.rows[rows.bias]);
  }
  void go_above_the_cap(Pair& pair) const {
    if (p.softcap > 0.0) {
      const double tanh = std::tanh(pair.score / p.softcap), off = pair.off + 2.0 * EPS * std::abs(pair.score);
      const double cosh = std::cosh(pair.score / p.softcap);
      pair.slope = 1.0 / (cosh * cosh);  // 1 - tanh^2, which would lose digits
      pair.slope_off = 2.0 * std::abs(tanh) * pair.slope / p.softcap * off + 8.0 * EPS * pair.slope;
      pair.score = p.softcap * tanh, pair.off = pair.slope * off + 6.0 * EPS * std::abs(pair.score);
    }
    const auto add = [&pair](double number) {
      pair.score += number, pair.off += EPS * (std::abs(number) + std::abs(pair.score));
    };
    if (!p.key_bias.empty())
      add(double(p.key_bias[(b * p.heads + h) * p.keys + pair.j]) - p.key_shift[(b * p.heads + h) * p.queries + i]);
    if (!p.added_mask.empty()) add(p.added_mask[p.mask_at(b, h, i, pair.j)]);
  }

  // The weights P, and lse.
  void softmax() {
    double most = -INFINITY, total = 0.0, off = 0.0;
    for (const Pair& pair : seen) most = std::max(most, pair.score);
    for (Pair& pair : seen) {
      pair.off += EPS * (0.5 * (most - pair.score) + 2.6);
      pair.weight = std::exp(pair.score - most);
      total += pair.weight;
    }
    for (Pair& pair : seen) pair.weight /= total, off += pair.weight * pair.off;
    off += C * EPS * std::sqrt(4.0 * double(seen.size()));
    for (Pair& pair : seen) pair.relative = pair.off + off + 2.0 * EPS;
    to.lse[row] = most + std::log(total);
    to.lse_bound[row] = off + EPS * (std::abs(most) + std::abs(std::log(total)) + std::abs(to.lse[row]));
  }

  // The numbers that the weight of a pair takes part in: v and every RV_c[d_c].
  template <class Take>
  void each_value(const Pair& pair, Index d, Take take) const {
    take(double(p.value[pair.value + d]), to.value[pair.value + d]);
    for (size_t n = 0; n < p.axes.size(); n++)
      if (const Index at = pair.axes[n].values; at >= 0)
        take(double(p.axes[n].relative_values.rows[at + d]), to.axes[n].relative_values[at + d]);
  }

  Sum output_of(Index d) const {
    Sum output;
    for (const Pair& pair : seen) {
      const double weight = pair.weight * pair.factor;
      each_value(pair, d, [&](double number, Sum&) {
        output.add(weight * number, std::abs(weight * number) * (pair.relative + p.rounded));
      });
    }
    return output;
  }

  // dS' = P * (F dO . (v + sum_c RV_c) - delta), and every gradient that it brings; delta = dO . O - dlse.
  void go_back(const Pair& pair, const Sum& delta) {
    Sum by_weight;
    for (Index d = 0; d < p.value_width; d++) {
      const double by_output = p.output_gradient[row * p.value_width + d];
      const double term = pair.weight * pair.factor * by_output, off = std::abs(term) * (pair.relative + p.rounded);
      each_value(pair, d, [&](double number, Sum& gradient) {
        by_weight.add(pair.factor * by_output * number);
        gradient.add(term, off);
      });
    }
    const double above = pair.weight * (by_weight.value - delta.value);
    const double above_off =
        std::abs(above) * (pair.relative + EPS) +
        pair.weight * (by_weight.bound() + delta.bound() + EPS * (std::abs(by_weight.value) + std::abs(delta.value)));
    if (!p.key_bias.empty()) to.key_bias[(b * p.heads + h) * p.keys + pair.j].add(above, above_off);
    if (!p.added_mask.empty()) to.mask[p.mask_at(b, h, i, pair.j)].add(above, above_off);
    const Change dS = {above * pair.slope, above_off * pair.slope + std::abs(above) * pair.slope_off};
    const Change rounded = dS.in_products(p.rounded);
    for (Index k = 0; k < p.width; k++) {
      rounded.times(p.scale * p.key[pair.key + k], to.query[query_at() + k]);
      rounded.times(p.scale * p.query[query_at() + k], to.key[pair.key + k]);
    }
    for (size_t n = 0; n < p.axes.size(); n++) go_back(p.axes[n], pair.axes[n], pair.key, dS, to.axes[n]);
  }
  // By what stands on an axis, and by what meets it. key: where k begins.
  void go_back(const Axis& axis, const Rows& rows, Index key, const Change& dS, AxisGradients& by) {
    const Index at = row * relative_width(axis);
    const Change rounded = dS.in_products(p.rounded);
    Sums& by_query = axis.relative_width ? by.relative_query : to.query;
    for (Index k = 0; rows.keys >= 0 && k < relative_width(axis); k++) {
      rounded.times(p.scale * axis.relative_keys.rows[rows.keys + k], by_query[at + k]);
      rounded.times(p.scale * relative_query(axis)[at + k], by.relative_keys[rows.keys + k]);
    }
    for (Index k = 0; rows.queries >= 0 && k < p.width; k++) {
      dS.times(p.scale * axis.relative_queries.rows[rows.queries + k], to.key[key + k]);
      dS.times(p.scale * p.key[key + k], by.relative_queries[rows.queries + k]);
    }
    if (rows.bias >= 0) dS.times(1.0, by.bias[rows.bias]);
  }
};

inline Answers answers(const Problem& p) {
  Answers to;
  const Index rows = p.batch * p.heads * p.queries;
  to.output.resize(rows * p.value_width), to.lse.resize(rows), to.lse_bound.resize(rows);
  to.query.resize(p.query.size()), to.key.resize(p.key.size()), to.value.resize(p.value.size());
  to.mask.resize(p.added_mask.size()), to.key_bias.resize(p.key_bias.size());
  for (const Axis& axis : p.axes)
    to.axes.push_back({Sums(axis.relative_query.size()), Sums(axis.relative_keys.rows.size()),
                       Sums(axis.relative_queries.rows.size()), Sums(axis.relative_values.rows.size()),
                       Sums(axis.bias.rows.size())});
  for (Index b = 0; b < p.batch; b++)
    for (Index h = 0; h < p.heads; h++)
      for (Index i = 0; i < p.queries; i++) Row(p, to, b, h, i).run();
  return to;
}

}  // namespace equation

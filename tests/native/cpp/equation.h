// The equation of docs/equation.md and its gradients, pair by pair in float64, beside a bound for what float32 may be
// off.
//
// Where the bound comes from. Inputs are floats, so all that differs is rounding, and to first order
//
//   a sum of n terms in float32      (C * sqrt(n) + 2) * eps * M  +  the sum of what the terms themselves are off
//   a score S                        that of its sum
//   a capped score c tanh(S / c)     slope * (that of S, and 2 eps of |S|) + 6 eps of it; slope = 1 - tanh^2, which is
//   off
//     by 2 |tanh| slope / c times the same, and by 8 eps of it
//   a score S + a_j - c_i            that of S, and eps of its size and of |a_j - c_i|
//   a weight P = e^(S - max) / total relative: off_j + sum_j P_j off_j + C * eps * sqrt(4 n) + 2 * eps
//     with off_j                     that of S_j, half an eps of |S_j - max|, 2.6 eps for e^x
//   dS' = P * (dP - delta)           by the product rule, and so dS = dS' * slope
//
// The 2.6 eps are derived in tests/native/test_exponential.py. C and M are those of tests/oracle/budget.py.
// C = sqrt(ln(2 N / p)): of N numbers compared, a right one is refused with chance p. M is the size of the partial
// sums: terms of one sign grow towards the sum, those of random sign like the root of the sum of their squares, and M
// is the larger. The 2 eps are three roundings that all terms may share: of the scale, of 1 / total, and of the number
// as it is stored. The 4 roundings for each of n keys in a total are those of the sum itself, and three where a larger
// score comes and shrinks what was there.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace equation {

using Index = int64_t;
using Floats = std::vector<float>;

constexpr double EPS = 1.0 / 8388608;  // 2^-23
constexpr double MOST_NUMBERS = 16777216, REFUSAL_CHANCE = 1e-9;
inline const double C = std::sqrt(std::log(2 * MOST_NUMBERS / REFUSAL_CHANCE));

// Rows for the offsets first, first + 1, ..., [heads, count, width]; none where count is 0.
struct Table {
  Index heads = 1, first = 0, count = 0, width = 1;
  bool clamps = false;
  Floats rows;

  // Where the row of offset d begins; -1 where nothing holds.
  Index row(Index head, Index d) const {
    const Index t = d - first, inside = std::min(std::max(t, Index(0)), count - 1);
    if (count == 0 || (t != inside && !clamps)) return -1;
    return ((heads == 1 ? 0 : head) * count + inside) * width;
  }
};

struct Problem {
  Index batch = 1, heads = 2, key_heads = 2, queries = 0, keys = 0;
  Index width = 16, value_width = 16, relative_width = 0;  // 0: the relative query is the query
  Index origin = 0, lowest = INT64_MIN / 4, highest = -(INT64_MIN / 4);
  // Where queries and keys stand if they are listed, [B, L] or for the whole batch [L]; else both are runs.
  std::vector<Index> query_positions, key_positions;
  double scale = 1.0, kept = 1.0;
  uint64_t seed = 0;
  Floats query, key, value, relative_query;  // [B, heads, L, width]
  Table relative_keys, relative_queries, relative_values, bias;
  std::vector<uint8_t> key_mask;                    // [B, Lk]
  std::vector<Index> query_segments, key_segments;  // [B, Lq], [B, Lk]
  std::array<Index, 4> mask_steps = {};             // of both masks below, over [B, Hq, Lq, Lk]
  std::vector<uint8_t> pair_mask;
  Floats added_mask;
  double softcap = 0.0;                  // 0 for none
  Floats key_bias, less;                 // a [B, Hq, Lk] and c [B, Hq, Lq]
  Floats output_gradient, lse_gradient;  // [B, Hq, Lq, Dv], [B, Hq, Lq]

  // Key position - query position.
  Index offset(Index b, Index i, Index j) const {
    if (query_positions.empty()) return origin + j - i;
    return key_positions[b * positions_step(key_positions, keys) + j] -
           query_positions[b * positions_step(query_positions, queries) + i];
  }
  // From a batch element's positions to the next one's; 0 where all share them.
  static Index positions_step(const std::vector<Index>& positions, Index length) {
    return Index(positions.size()) == length ? 0 : length;
  }
  Index mask_at(Index b, Index h, Index i, Index j) const {
    return b * mask_steps[0] + h * mask_steps[1] + i * mask_steps[2] + j * mask_steps[3];
  }
  bool sees(Index b, Index h, Index i, Index j) const {
    const Index d = offset(b, i, j);
    if (d < lowest || d > highest) return false;
    if (!key_mask.empty() && !key_mask[b * keys + j]) return false;
    if (!key_segments.empty() && query_segments[b * queries + i] != key_segments[b * keys + j]) return false;
    if (!pair_mask.empty() && !pair_mask[mask_at(b, h, i, j)]) return false;
    return added_mask.empty() || added_mask[mask_at(b, h, i, j)] != -INFINITY;
  }
};

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
  if (p.kept >= 1.0) return 1.0;
  const auto words =
      philox({uint32_t(j), uint32_t(i / 4), uint32_t(n), 0}, {uint32_t(p.seed), uint32_t(p.seed >> 32U)});
  return words[i % 4] < p.kept * 4294967296.0 ? 1.0 / p.kept : 0.0;
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

struct Answers {
  Sums output, query, key, value, relative_query;  // the output, and gradients by the others
  Sums relative_keys, relative_queries, relative_values, bias, mask, key_bias;  // gradients
  std::vector<double> lse, lse_bound;
};

// One row of queries: adds what it brings to the answers.
class Row {
 public:
  Row(const Problem& problem, Answers& answers, Index batch, Index head, Index query)
      : p(problem), to(answers), b(batch), h(head), i(query), key_head(head / (problem.heads / problem.key_heads)) {}

  void run() {
    for (Index j = 0; j < p.keys; j++)
      if (p.sees(b, h, i, j)) seen.push_back(pair(j));
    const Index row = (b * p.heads + h) * p.queries + i;
    if (seen.empty()) {
      to.lse[row] = -INFINITY;
      return;
    }
    soften(row);
    Sum delta;
    for (Index d = 0; d < p.value_width; d++) {
      Sum& output = to.output[row * p.value_width + d];
      for (const Pair& pair : seen) {
        const double weight = pair.weight * pair.factor;
        const auto add = [&](double number) { output.add(weight * number, std::abs(weight * number) * pair.relative); };
        add(value(pair, d));
        if (pair.values_row >= 0) add(relative_value(pair, d));
      }
      const double by_output = p.output_gradient[row * p.value_width + d];
      delta.add(by_output * output.value, std::abs(by_output) * output.bound());
    }
    delta.add(-double(p.lse_gradient[row]));
    for (const Pair& pair : seen) go_back(row, pair, delta);
  }

 private:
  struct Pair {
    Index j = 0;
    double factor = 1.0, score = 0.0, off = 0.0;  // of dropout; S', and what e^(S' - max) is off
    double slope = 1.0, slope_off = 0.0;          // of the cap
    double weight = 0.0, relative = 0.0;          // P, and what it is off, relative to it
    Index key = 0, value = 0;                     // where they begin
    Index keys_row = -1, queries_row = -1, values_row = -1, bias_row = -1;  // the tables' rows
  };

  const Problem& p;
  Answers& to;
  const Index b, h, i, key_head;
  std::vector<Pair> seen;

  Index query_at() const { return ((b * p.heads + h) * p.queries + i) * p.width; }
  Index relative_width() const { return p.relative_width ? p.relative_width : p.width; }
  Index relative_at() const { return ((b * p.heads + h) * p.queries + i) * relative_width(); }
  const Floats& relative_query() const { return p.relative_width ? p.relative_query : p.query; }
  double value(const Pair& pair, Index d) const { return p.value[pair.value + d]; }
  double relative_value(const Pair& pair, Index d) const { return p.relative_values.rows[pair.values_row + d]; }

  // S = scale * (q . k + r . RK[d] + RQ[d] . k) + b[d]; S' = softcap * tanh(S / softcap) + a - c + mask.
  Pair pair(Index j) const {
    Pair pair;
    const Index d = p.offset(b, i, j), key = (b * p.key_heads + key_head) * p.keys + j;
    pair.j = j, pair.factor = factor(p, b * p.heads + h, i, j);
    pair.key = key * p.width, pair.value = key * p.value_width;
    pair.keys_row = p.relative_keys.row(h, d), pair.queries_row = p.relative_queries.row(h, d);
    pair.values_row = p.relative_values.row(h, d), pair.bias_row = p.bias.row(h, d);
    Sum score;
    for (Index k = 0; k < p.width; k++) {
      score.add(p.scale * p.query[query_at() + k] * p.key[pair.key + k]);
      if (pair.queries_row >= 0)
        score.add(p.scale * p.relative_queries.rows[pair.queries_row + k] * p.key[pair.key + k]);
    }
    if (pair.keys_row >= 0)
      for (Index k = 0; k < relative_width(); k++)
        score.add(p.scale * relative_query()[relative_at() + k] * p.relative_keys.rows[pair.keys_row + k]);
    if (pair.bias_row >= 0) score.add(p.bias.rows[pair.bias_row]);
    const bool looks = p.softcap > 0.0 || !p.key_bias.empty();  // else the mask is one more term of the sum
    if (!looks && !p.added_mask.empty()) score.add(p.added_mask[p.mask_at(b, h, i, j)]);
    pair.score = score.value, pair.off = score.bound();
    if (looks) go_above_the_cap(pair);
    return pair;
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
      add(double(p.key_bias[(b * p.heads + h) * p.keys + pair.j]) - p.less[(b * p.heads + h) * p.queries + i]);
    if (!p.added_mask.empty()) add(p.added_mask[p.mask_at(b, h, i, pair.j)]);
  }

  // The weights P, and lse.
  void soften(Index row) {
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

  // dS' = P * (F dO . (v + RV) - delta), and every gradient that it brings; delta = dO . O - dlse.
  void go_back(Index row, const Pair& pair, const Sum& delta) {
    Sum by_weight;
    for (Index d = 0; d < p.value_width; d++) {
      const double by_output = p.output_gradient[row * p.value_width + d], weight = pair.weight * pair.factor;
      const double term = weight * by_output, off = std::abs(term) * pair.relative;
      by_weight.add(pair.factor * by_output * value(pair, d));
      to.value[pair.value + d].add(term, off);
      if (pair.values_row < 0) continue;
      by_weight.add(pair.factor * by_output * relative_value(pair, d));
      to.relative_values[pair.values_row + d].add(term, off);
    }
    const double above = pair.weight * (by_weight.value - delta.value);
    const double above_off =
        std::abs(above) * (pair.relative + EPS) +
        pair.weight * (by_weight.bound() + delta.bound() + EPS * (std::abs(by_weight.value) + std::abs(delta.value)));
    if (!p.key_bias.empty()) to.key_bias[(b * p.heads + h) * p.keys + pair.j].add(above, above_off);
    if (!p.added_mask.empty()) to.mask[p.mask_at(b, h, i, pair.j)].add(above, above_off);
    const double dS = above * pair.slope, off = above_off * pair.slope + std::abs(above) * pair.slope_off;
    const auto add = [&](Sum& sum, double number) { sum.add(dS * number, off * std::abs(number)); };
    for (Index k = 0; k < p.width; k++) {
      const double q = p.scale * p.query[query_at() + k], key = p.scale * p.key[pair.key + k];
      add(to.query[query_at() + k], key);
      add(to.key[pair.key + k], q);
      if (pair.queries_row >= 0) {
        add(to.key[pair.key + k], p.scale * p.relative_queries.rows[pair.queries_row + k]);
        add(to.relative_queries[pair.queries_row + k], key);
      }
    }
    if (pair.keys_row >= 0)
      for (Index k = 0; k < relative_width(); k++) {
        Sums& by_query = p.relative_width ? to.relative_query : to.query;
        add(by_query[relative_at() + k], p.scale * p.relative_keys.rows[pair.keys_row + k]);
        add(to.relative_keys[pair.keys_row + k], p.scale * relative_query()[relative_at() + k]);
      }
    if (pair.bias_row >= 0) add(to.bias[pair.bias_row], 1.0);
  }
};

inline Answers answers(const Problem& p) {
  Answers to;
  const Index rows = p.batch * p.heads * p.queries;
  to.output.resize(rows * p.value_width), to.lse.resize(rows), to.lse_bound.resize(rows);
  to.query.resize(p.query.size()), to.key.resize(p.key.size()), to.value.resize(p.value.size());
  to.relative_query.resize(p.relative_query.size()), to.relative_keys.resize(p.relative_keys.rows.size());
  to.relative_queries.resize(p.relative_queries.rows.size()), to.bias.resize(p.bias.rows.size());
  to.relative_values.resize(p.relative_values.rows.size()), to.mask.resize(p.added_mask.size());
  to.key_bias.resize(p.key_bias.size());
  for (Index b = 0; b < p.batch; b++)
    for (Index h = 0; h < p.heads; h++)
      for (Index i = 0; i < p.queries; i++) Row(p, to, b, h, i).run();
  return to;
}

}  // namespace equation

// The equation's own gradients, compared with how it changes.
#pragma once
#include "compare.h"
#include "positions.h"

struct Input {
  std::string name;
  Floats& numbers;
  const Sums& gradient;
};

inline std::vector<Input> inputs_of(Problem& p, const equation::Answers& at) {
  std::vector<Input> inputs = {{"query", p.query, at.query},
                               {"key", p.key, at.key},
                               {"value", p.value, at.value},
                               {"mask", p.added_mask, at.mask},
                               {"key bias", p.key_bias, at.key_bias}};
  for (size_t n = 0; n < p.axes.size(); n++) {
    const std::string where = n ? ", axis " + std::to_string(n) : "";
    Axis& axis = p.axes[n];
    const equation::AxisGradients& by = at.axes[n];
    if (axis.relative_width) inputs.push_back({"relative query" + where, axis.relative_query, by.relative_query});
    inputs.push_back({"relative keys" + where, axis.relative_keys.rows, by.relative_keys});
    inputs.push_back({"relative queries" + where, axis.relative_queries.rows, by.relative_queries});
    inputs.push_back({"relative values" + where, axis.relative_values.rows, by.relative_values});
    inputs.push_back({"bias" + where, axis.bias.rows, by.bias});
  }
  return inputs;
}

// <dO, O> + <dlse, lse>.
inline double total(const Problem& p) {
  const equation::Answers found = equation::answers(p);
  double sum = 0.0;
  for (size_t n = 0; n < found.output.size(); n++) sum += p.output_gradient[n] * found.output[n].value;
  for (size_t n = 0; n < found.lse.size(); n++) sum += p.lse_gradient[n] * found.lse[n];
  return sum;
}

// The change of the total between two problems on both sides of this one is that by its gradient. What the steps of up
// to 2^-13 leave is of third order.
inline void check_gradient(const Problem& p, const Input& input, Draw& draw) {
  const Floats here = input.numbers;
  Floats ahead = here, behind = here;
  double expected = 0.0, size = 0.0;
  for (size_t n = 0; n < here.size(); n++) {
    const float step = draw.number(1.0f / 8192);
    ahead[n] += step, behind[n] -= step;
    const double change = (double(ahead[n]) - behind[n]) * input.gradient[n].value;
    expected += change, size += std::abs(change);
  }
  if (size == 0.0) fail("it is 0 everywhere");
  input.numbers = ahead;
  const double above = total(p);
  input.numbers = behind;
  const double found = above - total(p);
  input.numbers = here;
  if (!(std::abs(found - expected) <= 1e-5 * size)) fail("found %.9g, expected %.9g", found, expected);
}

inline void check_gradients(Draw& draw, const Placement& placement) {
  Problem p = everything(draw, 5, 7, Index(placement.others.size()));
  placement.lay(p, draw);
  for (Axis& axis : p.axes)
    for (const Kind& kind : KINDS) (axis.*kind.table).first = -(axis.*kind.table).count / 2;  // so that pairs have rows
  p.mask_steps = {0, 0, p.keys, 1};
  p.added_mask = draw.numbers(p.queries * p.keys, 1.0f);
  p.keep_probability = 0.8, p.seed = 42;
  p.softcap = 2.0;
  p.key_bias = draw.numbers(p.batch * p.heads * p.keys, 1.0f);
  p.key_shift = draw.numbers(p.batch * p.heads * p.queries, 1.0f);
  const equation::Answers at = equation::answers(p);
  for (const Input& input : inputs_of(p, at)) {
    place = "the equation's gradient by " + input.name + placement.name();
    check_gradient(p, input, draw);
  }
}

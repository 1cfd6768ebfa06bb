// A problem given to the kernels of every instruction set, and all that they write compared with the equation.
#pragma once
#include "laid.h"
#include "sets.h"

using equation::Answers;

inline void run(Kernel kernel, Index floats, Call& call) {
  Written workspace(floats, NAN);
  call.workspace = workspace.at();
  kernel(&call);
  workspace.look_beside("the workspace");
}

inline void compare_outputs(Laid& found, const Answers& expected) {
  compare("output", found.output, expected.output);
  for (Index n = 0; n < found.rows; n++)
    compare_one("log-sum-exp", n, found.lse.at()[n], expected.lse[n], expected.lse_bound[n]);
  found.lse.look_beside("log-sum-exp");
  found.maximum.look_beside("maximum"), found.total.look_beside("total");
}

inline void compare_gradients(Laid& found, const Answers& expected) {
  compare("gradient of query", found.by_query, expected.query);
  compare("gradient of key", found.by_key, expected.key);
  compare("gradient of value", found.by_value, expected.value);
  for (size_t n = 0; n < found.axes.size(); n++) {
    LaidAxis& axis = found.axes[n];
    const equation::AxisGradients& of_axis = expected.axes[n];
    const std::string where = n ? ", axis " + std::to_string(n) : "";
    compare("gradient of relative_query" + where, axis.by_relative_query, of_axis.relative_query);
    compare("gradient of relative_keys" + where, axis.by_relative_keys, of_axis.relative_keys);
    compare("gradient of relative_queries" + where, axis.by_relative_queries, of_axis.relative_queries);
    compare("gradient of relative_values" + where, axis.by_relative_values, of_axis.relative_values);
    compare("gradient of bias" + where, axis.by_bias, of_axis.bias);
  }
  compare("gradient of the mask", found.by_mask, expected.mask);
  compare("gradient of the key bias", found.by_key_bias, expected.key_bias);
}

// Runs the kernels of one set on a problem.
inline void check_one(const Kernels& kernels, const Problem& p, const Layout& layout, const Answers& expected) {
  Laid found(p, layout);
  if (layout.few)
    run(kernels.few, kernels.few_workspace(&found.call), found.call);
  else
    run(kernels.forward, kernels.workspace(&found.call, 0), found.call);
  compare_outputs(found, expected);
  if (layout.few) return;
  found.ask_for_gradients();
  run(kernels.backward, kernels.workspace(&found.call, 1), found.call);
  compare_gradients(found, expected);
}

inline void check(std::vector<Kernels>& sets, const Problem& p, const Layout& layout) {
  const Answers expected = equation::answers(p);
  for (Kernels& kernels : sets) {
    tally = p.in_bfloat16 ? &kernels.in_bfloat16 : &kernels.calls;
    check_one(kernels, p, layout, expected);
  }
}

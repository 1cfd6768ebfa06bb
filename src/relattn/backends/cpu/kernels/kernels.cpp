// The kernels for one instruction set. This file is compiled once per set, with RELATTN_SET as its name.
#include "backward.h"
#include "few.h"
#include "forward.h"
#include "rotation.h"
#include "threads.h"

#define JOINED(a, b) a##_##b
#define NAMED(name, set) JOINED(name, set)

namespace RELATTN_SET {
namespace {

constexpr Index SPARE = 16;  // floats, so that the caller can align the start to 64 bytes

Index aligned(const Workspace& workspace) { return rounded_up(workspace.floats(), LANES); }

// The floats that a thread needs for a unit.
template <class Pass>
Index own_size(const Pass& pass) {
  Workspace counted;
  const typename Pass::Scratch scratch(pass, counted);
  return aligned(counted);
}

Packed packed_for(const Call& call, bool backward, Workspace& workspace) {
  const Packed packed(call, backward, workspace);
  const Packing packing = {call, packed};
  parallel_for(packing.units(), call.threads, [&](Index unit, Index) { packing.run(unit); });
  return packed;
}

}  // namespace
}  // namespace RELATTN_SET

using namespace RELATTN_SET;

extern "C" {

Index NAMED(relattn_few_workspace, RELATTN_SET)(const Call* call) {
  Workspace counted;
  const Few few(*call, counted);
  return aligned(counted) + call->threads * few.scratch() + SPARE;
}

// The forward pass for few queries: the same answers, with sums in another order.
void NAMED(relattn_few, RELATTN_SET)(const Call* address) {
  const Call& call = *address;
  Workspace workspace(call.workspace);
  const Few few(call, workspace);
  float* const scratch = call.workspace + aligned(workspace);
  parallel_for(few.units(), call.threads,
               [&](Index unit, Index thread) { few.run(unit, scratch + thread * few.scratch()); });
  parallel_for(few.merges(), call.threads, [&](Index row, Index) { few.merge(row); });
}

Index NAMED(relattn_workspace, RELATTN_SET)(const Call* call, Index backward) {
  Workspace counted;
  const Packed packed(*call, backward, counted);
  if (backward) const GradientSums sums(*call, counted);
  const Index own = backward ? own_size(BackwardTiles(*call)) : own_size(Forward(*call, packed));
  return aligned(counted) + call->threads * own + SPARE;
}

void NAMED(relattn_forward, RELATTN_SET)(const Call* address) {
  const Call& call = *address;
  Workspace workspace(call.workspace);
  const Packed packed = packed_for(call, false, workspace);
  float* const scratch = call.workspace + aligned(workspace);
  const Forward forward(call, packed);
  const Index own = own_size(forward);
  parallel_for(forward.units(), call.threads,
               [&](Index unit, Index thread) { forward.run(unit, scratch + thread * own); });
}

void NAMED(relattn_backward, RELATTN_SET)(const Call* address) {
  const Call& call = *address;
  Workspace workspace(call.workspace);
  const Packed packed = packed_for(call, true, workspace);
  const Backward backward(call, packed, workspace);
  float* const scratch = call.workspace + aligned(workspace);
  const Index own = own_size(backward.tiles);
  parallel_for(backward.units(), call.threads,
               [&](Index unit, Index thread) { backward.run(unit, scratch + thread * own, own); });
  parallel_for(backward.query_heads(), call.threads, [&](Index head, Index) { backward.finish_queries(head); });
  parallel_for(backward.rows_of_tables(), call.threads, [&](Index row, Index) { backward.write_row(row); });
}

void NAMED(relattn_rotate, RELATTN_SET)(const Rotation* address) {
  const Rotation& rotation = *address;
  parallel_for(rotation.units(), rotation.threads, [&](Index unit, Index) { rotation.run(unit); });
}

}  // extern "C"

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

// Floats of workspace that all threads share, and floats for each thread.
Index shared_size(const Call& call, bool backward) {
  return rounded_up(Packed::size(call, backward) + (backward ? Backward::sums(call) : 0), LANES);
}

template <class Pass>
Index own_size(const Pass& pass) {
  return rounded_up(pass.scratch(), LANES);
}

Packed packed_for(const Call& call, bool backward, float*& workspace) {
  const Packed packed = packed_in(call, backward, workspace);
  const Packing packing(call, packed);
  parallel_for(packing.units(), call.threads, [&](Index unit, Index) { packing.run(unit); });
  return packed;
}

}  // namespace
}  // namespace RELATTN_SET

using namespace RELATTN_SET;

extern "C" {

Index NAMED(relattn_few_workspace, RELATTN_SET)(const Call* call) {
  const Few few(*call, nullptr);
  return room_for(few.shared()) + call->threads * own_size(few) + SPARE;
}

// The forward pass for few queries: the same answers, with sums in another order.
void NAMED(relattn_few, RELATTN_SET)(const Call* address) {
  const Call& call = *address;
  const Few few(call, call.workspace);
  const Index own = own_size(few);
  float* scratch = call.workspace;
  next_part(scratch, few.shared());
  parallel_for(few.units(), call.threads, [&](Index unit, Index thread) { few.run(unit, scratch + thread * own); });
  parallel_for(few.merges(), call.threads, [&](Index row, Index) { few.merge(row); });
}

Index NAMED(relattn_workspace, RELATTN_SET)(const Call* call, Index backward) {
  const Packed packed = {};
  const Index own = backward ? own_size(BackwardTiles(*call)) : own_size(Forward(*call, packed));
  return shared_size(*call, backward) + call->threads * own + SPARE;
}

void NAMED(relattn_forward, RELATTN_SET)(const Call* address) {
  const Call& call = *address;
  float* workspace = call.workspace;
  float* scratch = workspace + shared_size(call, false);
  const Packed packed = packed_for(call, false, workspace);
  const Forward forward(call, packed);
  const Index own = own_size(forward);
  parallel_for(forward.units(), call.threads,
               [&](Index unit, Index thread) { forward.run(unit, scratch + thread * own); });
}

void NAMED(relattn_backward, RELATTN_SET)(const Call* address) {
  const Call& call = *address;
  float* workspace = call.workspace;
  float* scratch = workspace + shared_size(call, true);
  const Packed packed = packed_for(call, true, workspace);
  const Backward backward(call, packed, workspace);
  const Index own = own_size(backward);
  parallel_for(backward.units(), call.threads,
               [&](Index unit, Index thread) { backward.run(unit, scratch + thread * own); });
  parallel_for(backward.query_heads(), call.threads, [&](Index head, Index) { backward.finish_queries(head); });
  parallel_for(backward.rows_of_tables(), call.threads, [&](Index row, Index) { backward.write_row(row); });
}

void NAMED(relattn_rotate, RELATTN_SET)(const Rotation* address) {
  const Rotation& rotation = *address;
  parallel_for(rotation.units(), rotation.threads, [&](Index unit, Index) { rotation.run(unit); });
}

}  // extern "C"

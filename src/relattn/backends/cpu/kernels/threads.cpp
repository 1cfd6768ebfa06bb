#include "threads.h"

#include <algorithm>
#include <atomic>

#include "subnormals.h"

// The functions of the OpenMP runtime that PyTorch has loaded; null where there is none. Linking to a runtime could
// start a second one beside it. dlsym would need the C library of the machine that compiles.
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) __attribute__((weak));

namespace {

struct Shared {
  int64_t units;
  void (*work)(void*, int64_t, int64_t);
  void* context;
  std::atomic<int64_t> next{0}, thread{0};
};

// Each thread takes the next unit until none is left. With long units first, all threads end at about the same time.
void take_units(void* context) {
  Shared& shared = *static_cast<Shared*>(context);
  const WithoutSubnormals meanwhile;
  const int64_t thread = shared.thread++;
  for (int64_t unit; (unit = shared.next++) < shared.units;) shared.work(shared.context, unit, thread);
}

}  // namespace

void parallel_for(int64_t units, int64_t threads, void (*work)(void*, int64_t, int64_t), void* context) {
  Shared shared{units, work, context};
  threads = std::min(threads, units);
  if (threads > 1 && GOMP_parallel)
    GOMP_parallel(take_units, &shared, unsigned(threads), 0);
  else
    take_units(&shared);
}

extern "C" int relattn_has_threads() { return GOMP_parallel != nullptr; }

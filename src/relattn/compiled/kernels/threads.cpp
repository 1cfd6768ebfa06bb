#include "threads.h"

#include <algorithm>
#include <atomic>

#include "subnormals.h"

// What the OpenMP runtime that PyTorch has loaded offers, null where there is none. Linking to one could start a second
// runtime beside it; dlsym would ask for the C library of the machine that compiles.
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) __attribute__((weak));

namespace {

struct Shared {
  int64_t units;
  void (*work)(void*, int64_t, int64_t);
  void* context;
  std::atomic<int64_t> next{0}, thread{0};
};

// Each thread takes the next unit until none is left: long ones first leave no thread behind.
void take_units(void* given) {
  Shared& shared = *static_cast<Shared*>(given);
  const WithoutSubnormals meanwhile;
  const int64_t thread = shared.thread++;
  for (int64_t unit; (unit = shared.next++) < shared.units;) shared.work(shared.context, unit, thread);
}

}  // namespace

void share_out(int64_t units, int64_t threads, void (*work)(void*, int64_t, int64_t), void* context) {
  Shared shared{units, work, context};
  threads = std::min(threads, units);
  if (threads > 1 && GOMP_parallel)
    GOMP_parallel(take_units, &shared, unsigned(threads), 0);
  else
    take_units(&shared);
}

extern "C" int relattn_has_threads() { return GOMP_parallel != nullptr; }

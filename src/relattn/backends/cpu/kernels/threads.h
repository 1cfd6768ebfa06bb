// Divides work over PyTorch's own threads.
#pragma once
#include <cstdint>

// Calls work(context, unit, thread) for every unit, in any order, on at most `threads` threads.
void parallel_for(int64_t units, int64_t threads, void (*work)(void*, int64_t unit, int64_t thread), void* context);

template <class Work>
void parallel_for(int64_t units, int64_t threads, const Work& work) {
  parallel_for(
      units, threads,
      [](void* context, int64_t unit, int64_t thread) { (*static_cast<const Work*>(context))(unit, thread); },
      const_cast<void*>(static_cast<const void*>(&work)));
}

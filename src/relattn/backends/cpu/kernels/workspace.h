// A workspace is divided into parts, one after the other.
// In a build with the address sanitizer a gap follows each part, and touching the gap is an error. Without gaps the
// sanitizer would see only the end of the whole workspace.
#pragma once
#include <cstring>

#include "vector.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace RELATTN_SET {

#if defined(__SANITIZE_ADDRESS__)
constexpr Index GAP = 128;  // floats
INLINE void forbid(const float* at, Index count) { ASAN_POISON_MEMORY_REGION(at, count * sizeof(float)); }
INLINE void allow(const float* at, Index count) { ASAN_UNPOISON_MEMORY_REGION(at, count * sizeof(float)); }
#else
constexpr Index GAP = 0;
INLINE void forbid(const float*, Index) {}
INLINE void allow(const float*, Index) {}
#endif

// The floats that parts of these sizes take.
template <class... Sizes>
INLINE Index room_for(Sizes... sizes) {
  return ((sizes + (sizes > 0 ? GAP : 0)) + ...);
}

// The next part, `size` floats; `at` advances past it.
INLINE float* next_part(float*& at, Index size) {
  float* part = at;
  at += room_for(size);
  allow(part, size);
  forbid(part + size, at - part - size);
  return part;
}

// Sets all `size` floats of a workspace to zero, before it is divided.
INLINE void clear(float* at, Index size) {
  allow(at, size);
  std::memset(at, 0, size * sizeof(float));
}

}  // namespace RELATTN_SET

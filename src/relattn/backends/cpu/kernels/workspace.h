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

class Workspace {
 public:
  Workspace() = default;  // without memory: it counts what its parts take
  explicit Workspace(float* at) : memory(at) {}

  Index floats() const { return taken; }

  // The next part, `size` numbers as wide as floats; null if it is empty, and without memory. inside: how many numbers
  // lie in the part before the place that is returned.
  template <class Number = float>
  Number* next(Index size, Index inside = 0) {
    static_assert(sizeof(Number) == sizeof(float));
    if (size <= 0) return nullptr;
    const Index first = taken;
    taken += size + GAP;
    if (!memory) return nullptr;
    allow(memory + first, size);
    forbid(memory + first + size, GAP);
    return reinterpret_cast<Number*>(memory + first + inside);
  }

 private:
  float* memory = nullptr;
  Index taken = 0;
};

// Sets all `size` floats of a workspace to zero, before it is divided.
INLINE void clear(float* at, Index size) {
  allow(at, size);
  std::memset(at, 0, size * sizeof(float));
}

}  // namespace RELATTN_SET

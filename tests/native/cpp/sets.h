// The kernels of a library: one of each kind for every instruction set that this machine runs.
#pragma once
#include <dlfcn.h>

#include "called.h"
#include "compare.h"

using Kernel = void (*)(const Call*);

struct Kernels {
  Tally calls, in_bfloat16, rotations;
  Index (*workspace)(const Call*, Index);
  Kernel forward, backward;
  Index (*few_workspace)(const Call*);
  Kernel few;
  void (*rotate)(const Rotation*);
};

// A function of the library, null where it has none of the name.
template <class Function>
Function find(void* library, const std::string& name, const std::string& set) {
  return reinterpret_cast<Function>(dlsym(library, ("relattn_" + name + "_" + set).c_str()));
}

inline bool runs(void* library, const std::string& set) {
  const auto asked = find<int (*)()>(library, "runs", set);
  return find<Kernel>(library, "forward", set) && (!asked || asked());
}

inline Kernels kernels_of(void* library, const std::string& set) {
  return {{set},
          {set + ", bfloat16"},
          {set + ", rotations"},
          find<Index (*)(const Call*, Index)>(library, "workspace", set),
          find<Kernel>(library, "forward", set),
          find<Kernel>(library, "backward", set),
          find<Index (*)(const Call*)>(library, "few_workspace", set),
          find<Kernel>(library, "few", set),
          find<void (*)(const Rotation*)>(library, "rotate", set)};
}

// All that run; the last is the generic set, which a library always has.
inline std::vector<Kernels> kernels_of(void* library) {
  if (!runs(library, "generic")) fail("the library has no kernels");
  std::vector<Kernels> found;
  for (const char* set : {"avx512bf16", "avx512", "avx2", "generic"})
    if (runs(library, set)) found.push_back(kernels_of(library, set));
  return found;
}

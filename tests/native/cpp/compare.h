// What the kernels wrote compared with what it should be, and with what it should leave alone.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "equation.h"

using equation::Floats;
using equation::Index;
using equation::Sums;

// Of some kernels: how many numbers were compared, and the largest error, divided by its bound.
struct Tally {
  std::string name;
  long compared = 0;
  double closest = 0.0;
};

inline std::string place;       // how far along the suite is, for the sentences
inline Tally* tally = nullptr;  // of the kernels that ran last

[[noreturn]] inline __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  std::printf("%s%s%s: ", tally ? tally->name.c_str() : "", tally ? ", " : "", place.c_str());
  va_list given;
  va_start(given, format);
  std::vprintf(format, given);
  va_end(given);
  std::printf("\n");
  std::exit(1);
}

// Memory that the kernels write to, all `first` at first, between rows that they must leave alone.
class Written {
 public:
  Written(Index count, float first) : size(count), all(count + 2 * ROOM, UNTOUCHED) {
    std::fill(at(), at() + count, first);
  }
  // At a multiple of 64 bytes, as the caller gives them a workspace.
  float* at() { return all.data() + before(); }
  void look_beside(const char* what) const {
    for (Index n = 0; n < Index(all.size()); n++)
      if ((n < before() || n >= before() + size) && all[n] != UNTOUCHED) fail("beside %s a number was written", what);
  }

 private:
  static constexpr Index ROOM = 64;
  static constexpr float UNTOUCHED = 12345.0f;
  Index before() const { return ROOM - Index(reinterpret_cast<uintptr_t>(all.data()) % 64 / sizeof(float)); }
  Index size;
  Floats all;
};

inline void compare_one(const char* what, Index n, double found, double expected, double bound) {
  tally->compared++;
  if (found == expected) return;  // infinities, too
  const double error = std::abs(found - expected);
  if (!(error <= bound))
    fail("%s [%ld] is %.9g; the equation gives %.9g, and rounding explains %.2g", what, long(n), found, expected,
         bound);
  tally->closest = std::max(tally->closest, error / bound);
}

inline void compare(const std::string& what, Written& found, const Sums& expected) {
  for (Index n = 0; n < Index(expected.size()); n++)
    compare_one(what.c_str(), n, found.at()[n], expected[n].value, expected[n].bound());
  found.look_beside(what.c_str());
}

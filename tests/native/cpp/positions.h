// Where queries and keys stand, in patterns of explicit positions.
#pragma once
#include <algorithm>
#include <string>
#include <utility>

#include "draw.h"

// Changes the positions 0, 1, ... of one side, or those of as many from another one on.
struct Pattern {
  const char* name;
  void (*lay)(std::vector<Index>&, Draw&);
};

constexpr Index BEYOND_32_BITS = 6442450944;
constexpr Index COLUMNS = 5;  // of a grid
// Where tokens stand that have no place on an axis: every offset between them and those that have one lies beyond all
// tables.
constexpr Index OFF_GRID = 576460752303423488;  // 2^59

constexpr Pattern PATTERNS[] = {
    {"in a row",
     [](std::vector<Index>& positions, Draw& draw) {
       const Index first = draw.below(20) - 10;
       for (Index& position : positions) position += first;
     }},
    {"with gaps",
     [](std::vector<Index>& positions, Draw& draw) {
       Index gaps = 0;
       for (Index& position : positions) position += gaps += draw.below(3);
     }},
    {"thrice each",
     [](std::vector<Index>& positions, Draw&) {
       for (Index& position : positions) position /= 3;
     }},
    {"backwards", [](std::vector<Index>& positions, Draw&) { std::reverse(positions.begin(), positions.end()); }},
    {"in any order",
     [](std::vector<Index>& positions, Draw& draw) {
       for (size_t n = positions.size(); n > 1; n--) std::swap(positions[n - 1], positions[draw.below(Index(n))]);
     }},
    {"spread over hundreds",
     [](std::vector<Index>& positions, Draw& draw) {
       for (Index& position : positions) position = draw.below(600);
     }},
    {"now and then beyond 32 bits",
     [](std::vector<Index>& positions, Draw& draw) {
       for (Index& position : positions) position += (draw.below(5) - 2) / 2 * BEYOND_32_BITS;
     }},
    {"as rows of a grid",
     [](std::vector<Index>& positions, Draw&) {
       for (Index& position : positions) position /= COLUMNS;
     }},
    {"as columns of a grid",
     [](std::vector<Index>& positions, Draw&) {
       for (Index& position : positions) position %= COLUMNS;
     }},
    {"as rows of a grid, some off the grid",
     [](std::vector<Index>& positions, Draw& draw) {
       for (Index& position : positions) position = draw.below(6) ? position / COLUMNS : OFF_GRID + draw.below(2);
     }},
};

constexpr const Pattern& IN_ANY_ORDER = PATTERNS[4];
constexpr const Pattern& ROWS_OF_A_GRID = PATTERNS[7];
constexpr const Pattern& COLUMNS_OF_A_GRID = PATTERNS[8];
constexpr const Pattern& SOME_OFF_GRID = PATTERNS[9];

// The positions of a side, for the whole batch or for each of `batch` elements. first: the number of its first token.
inline std::vector<Index> positions_of(const Pattern& pattern, Draw& draw, Index batch, Index length, Index first = 0) {
  std::vector<Index> found;
  for (Index b = draw.below(2) ? batch : 1; b > 0; b--) {
    std::vector<Index> positions(length);
    for (Index n = 0; n < length; n++) positions[n] = first + n;
    pattern.lay(positions, draw);
    found.insert(found.end(), positions.begin(), positions.end());
  }
  return found;
}

// On the sequence: the queries among the keys, or beside the last of them, as where a token is decoded. batch: the
// problem's, or 1 where all its elements share the positions.
inline void lay_sequence(const Pattern& pattern, Problem& p, Draw& draw, Index batch) {
  Axis& axis = p.sequence();
  axis.query_positions = positions_of(pattern, draw, batch, p.queries);
  axis.key_positions = positions_of(pattern, draw, batch, p.keys);
  if (draw.below(2))
    for (Index& position : axis.query_positions) position += p.keys - p.queries;
}

// On another axis: the queries are the first of the keys' tokens, or the last.
inline void lay_axis(const Pattern& pattern, Problem& p, Axis& axis, Draw& draw, Index batch) {
  const Index first = draw.below(2) ? std::max(p.keys - p.queries, Index(0)) : 0;
  axis.query_positions = positions_of(pattern, draw, batch, p.queries, first);
  axis.key_positions = positions_of(pattern, draw, batch, p.keys);
}

// How the tokens of a problem are placed on all its axes.
struct Placement {
  const Pattern* sequence;  // null where it is contiguous
  std::vector<const Pattern*> others;

  std::string name() const {
    std::string name = sequence ? std::string(", positions ") + sequence->name : "";
    for (const Pattern* pattern : others) name += std::string(", an axis ") + pattern->name;
    return name;
  }
  void lay(Problem& p, Draw& draw) const {
    const Index batch = draw.below(2) ? p.batch : 1;
    if (sequence) lay_sequence(*sequence, p, draw, batch);
    for (size_t n = 0; n < others.size(); n++) lay_axis(*others[n], p, p.axes[n + 1], draw, batch);
  }
};

// The score equation for one head, over the numbers of make_numbers.py:
//
//     S_ij  =  scale * ( q_i . k_j  +  r_i . RK[d]  +  RQ[d] . k_j )  +  b[d]        d = j - i
//
// A table has a row for each offset, from the most distant past on: row d + (its rows - 1) / 2.

"use strict";

const relattnEquation = (() => {
  const dot = (a, b) => a.reduce((sum, number, n) => sum + number * b[n], 0);

  const at = (table, offset) => table[offset + (table.length - 1) / 2];

  // What a table adds to the score of query i and key j, before q . k.
  const ofTables = (symbols, query, key, scale, i, j) => {
    const d = j - i;
    let sum = symbols.bias ? at(symbols.bias, d) : 0;
    if (symbols.relative_keys) sum += scale * dot((symbols.relative_query || query)[i], at(symbols.relative_keys, d));
    if (symbols.relative_queries) sum += scale * dot(at(symbols.relative_queries, d), key[j]);
    return sum;
  };

  const matrix = (length, number) =>
    Array.from({ length }, (_, i) => Array.from({ length }, (_, j) => number(i, j)));

  // S of the first `length` tokens; -Infinity where causality hides a key. The scale is 1 / sqrt(D) unless given.
  const scores = (tokens, symbols, length, causal, given) => {
    const query = symbols.query || tokens.query;
    const key = symbols.key || tokens.key;
    const scale = given || 1 / Math.sqrt(tokens.query[0].length);
    return matrix(length, (i, j) =>
      causal && j > i ? -Infinity : scale * dot(query[i], key[j]) + ofTables(symbols, tokens.query, key, scale, i, j)
    );
  };

  // What the encoding adds: S with it, less S without.
  const added = (tokens, symbols, length) => {
    const without = scores(tokens, {}, length, false);
    return scores(tokens, symbols, length, false).map((row, i) => row.map((score, j) => score - without[i][j]));
  };

  const softmax = (row) => {
    const largest = Math.max(...row);
    const powers = row.map((score) => Math.exp(score - largest));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((power) => power / sum);
  };

  // The mean of a matrix along each diagonal, from d = 1 - length to length - 1.
  const diagonals = (values) => {
    const length = values.length;
    return Array.from({ length: 2 * length - 1 }, (_, n) => {
      const d = n - length + 1;
      const on = values.map((row, i) => row[i + d]).filter((number) => number !== undefined);
      return on.reduce((a, b) => a + b, 0) / on.length;
    });
  };

  return { scores, added, softmax, diagonals };
})();

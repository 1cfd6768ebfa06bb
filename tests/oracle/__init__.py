"""Each paper's own formula in float64 NumPy: what relattn's answers are measured against.

Nothing here imports relattn or torch. Every oracle is written in the notation of its paper, per pair (i, j), not from
relattn's unified equation, so that a mistake in the unification shows. The exception is `raw_terms`: the unified
equation itself, by explicit loops, for tables that belong to no paper.

    ORACLES[name](inputs, parameters, **keywords)  -> Answer(output, lse, weights)
    sum_of_encodings(inputs, parts, **keywords)    -> Answer, for `a + b`; parts = [(name, parameters, settings), ...]
    raw_terms(inputs, terms, **keywords)           -> Answer, for ScoreTerms built by hand

inputs      (query [B, Hq, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv]), float64
parameters  mapping from name to float64 array, named and shaped as the parameters of relattn's modules (rows ascend
            in offset); empty for encodings without parameters
keywords    the encoding's settings (below) and the common ones:
            scale=None (1/sqrt(D)), query_position=0, key_position=0 (int, [L] or [B, L]), is_causal=False,
            window=None ((left, right); None: no limit on that side), key_mask=None [B, Lk],
            segment_ids=None ([B, L] or a pair),
            attn_mask=None (bool: True allows; float: added to the scores; broadcasts to [B, Hq, Lq, Lk]),
            softcap=None, key_bias=None [B or 1, Hq or 1, Lk], sinks=None ([Hq] or [B, Hq, Lq])
            axes=None ({name: OnAxis}: where both sides stand on other axes than the sequence)
Answer      output [B, Hq, Lq, Dv], lse [B, Hq, Lq], weights [B, Hq, Lq, Lk]; a row that may attend to nothing has
            output 0, lse -inf, weights 0

| name              | parameters                                          | settings                                   |
|---|---|---|
| none              |                                                     |                                            |
| shaw              | relative_keys, [relative_values] [H or 1, l+1+r, D] | max_distance: int or (left, right)         |
| music_transformer | relative_keys [H or 1, L, D]                        | always needs is_causal=True                |
| generalised       | relative_keys [H or 1, 2L-1 or L, D]                | causal=False, beyond="error", clamp, zero |
| transformer_xl    | linear_pos.weight [H*D, E], pos_bias_u, pos_bias_v  | interleaved=False                          |
|                   | or, learned: relative_keys [H, 2L-1, D] and u, v    |                                            |
| t5                | bias [num_buckets, H]                               | max_distance=128, bidirectional=True       |
| alibi             | or, learned: slopes [H]                             | given=None (slopes), signed=False          |
| rope              |                                                     | base=10000.0, rotary_dim=None,             |
|                   |                                                     | interleaved=False, factor=1.0 and          |
|                   |                                                     | rule=None (scaling)                        |
| key_query         | relative_embeddings [H or 1, 2L-1, D]               |                                            |
| disentangled      | relative_embeddings [2K, E], pos_key_proj.weight    | max_distance=None (with buckets: an int)   |
|                   | [H*D, E], .bias [H*D], and/or pos_query_proj        |                                            |
| kerple            | r1, r2 [H]                                          | kind="log", power                          |
| sandwich          |                                                     | width=128                                  |
| function          | function.first.weight [E, 1], .bias [E],            |                                            |
|                   | function.last.weight [H, E], .bias [H]              |                                            |
| grid_bias         | bias [prod(2 s - 1) + extra, H]                     | sizes, axes, extra=0, 3                    |
| grid_embedding    | relative_keys [H or 1, prod(2 s - 1), D]            | sizes, axes                                |
| log_grid          | function.mlp.0.weight, .0.bias, .2.weight           | sizes, axes                                |
| decomposed        | a table per axis (see there)                        | axes                                       |
| layoutlm_v3       | three tables (see there)                            | max_distances                              |
| pitch_and_time    | three tables (see there)                            |                                            |

The last six stand on other axes. Every other paper stands on one with the setting on=NAME in `sum_of_encodings`.

Each paper's module also exposes `ingredients(query, key, pairs, parameters, **settings)`, listed in INGREDIENTS: what
the paper adds per pair, before masks, softmax and values.

Gradients: gradient.complex_step_gradients. Every array may be complex, and any array may carry one extra leading axis
(of perturbations); an attn_mask that does must be written with all four of its own axes.
"""

from tests.oracle import (
    alibi,
    decomposed,
    disentangled,
    function,
    generalised,
    grid_bias,
    kerple,
    key_query,
    layoutlm_v3,
    log_grid,
    music_transformer,
    no_encoding,
    pitch_and_time,
    rope,
    sandwich,
    shaw,
    t5,
    transformer_xl,
)
from tests.oracle.budget import assert_within_budget, max_error
from tests.oracle.equation import Answer, Ingredients, add_ingredients, attend, standing
from tests.oracle.gradient import complex_step_gradients, directional_derivative
from tests.oracle.pairs import OnAxis, Pairs
from tests.oracle.raw_terms import Table, Terms, raw_terms

_PAPERS = {
    "none": no_encoding,
    "shaw": shaw,
    "music_transformer": music_transformer,
    "generalised": generalised,
    "transformer_xl": transformer_xl,
    "t5": t5,
    "alibi": alibi,
    "rope": rope,
    "disentangled": disentangled,
    "key_query": key_query,
    "kerple": kerple,
    "sandwich": sandwich,
    "function": function,
}
ORACLES = {name: paper.attention for name, paper in _PAPERS.items()}
INGREDIENTS = {name: paper.ingredients for name, paper in _PAPERS.items()} | {
    "grid_bias": grid_bias.ingredients,
    "grid_embedding": grid_bias.embedding_ingredients,
    "log_grid": log_grid.ingredients,
    "decomposed": decomposed.ingredients,
    "layoutlm_v3": layoutlm_v3.ingredients,
    "pitch_and_time": pitch_and_time.ingredients,
}


def sum_of_encodings(inputs, parts, **keywords) -> Answer:
    """Attention under the sum of several encodings: tables see the unrotated query, a rotation replaces q . k only.

    A part with the setting `on` stands on that axis.
    """

    def of_part(query, key, pairs: Pairs, name, parameters, *, on=None, **settings) -> Ingredients:
        if on is None:
            return INGREDIENTS[name](query, key, pairs, parameters, **settings)
        own = {one.removeprefix("encoding."): array for one, array in parameters.items()}  # as relattn's `.on` has it
        return standing(INGREDIENTS[name](query, key, pairs.axes[on], own, **settings), pairs.axes[on])

    def ingredients(query, key, pairs: Pairs) -> Ingredients:
        each = [of_part(query, key, pairs, name, parameters, **settings) for name, parameters, settings in parts]
        return add_ingredients(each)

    return attend(inputs, ingredients, **keywords)


__all__ = [
    "INGREDIENTS",
    "ORACLES",
    "Answer",
    "Ingredients",
    "OnAxis",
    "Pairs",
    "Table",
    "Terms",
    "assert_within_budget",
    "complex_step_gradients",
    "directional_derivative",
    "max_error",
    "raw_terms",
    "sum_of_encodings",
]

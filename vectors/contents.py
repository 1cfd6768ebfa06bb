"""Which test vectors there are: for every file its encodings, the calls it answers, its equation and its source.

A case is keywords of the oracles (`tests/oracle`), with a mask by its name.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tests.oracle.rope import Rule
from vectors import equations as eq

MASKS = {
    "key_mask": np.array([[True, True, True, True, True, False], [True, True, True, False, True, False]]),
    "left_padding": np.array([[True, True, True, True, True, True], [False, False, True, True, True, True]]),
}
WIDTH, HEADS = 4, 2
GRID = (2, 3)


class Sizes(NamedTuple):
    """query [B, H, Lq, D], key and value [B, H, Lk, D]."""

    batch: int = 2
    heads: int = HEADS
    queries: int = 6
    keys: int = 6
    width: int = WIDTH


class Parameter(NamedTuple):
    """A table or weight of an encoding, and what its axes and rows are; positive: its numbers lie above 0."""

    shape: tuple[int, ...]
    meaning: str
    positive: bool = False


class Part(NamedTuple):
    """One encoding.

    settings: what the file states. oracle_settings: the same for `tests.oracle`, which reads some off a parameter's
    shape, and names linear scaling otherwise. axis: the one that it stands on, where that is not the sequence.
    """

    name: str
    parameters: dict[str, Parameter]
    settings: dict[str, Any]
    oracle: str
    oracle_settings: dict[str, Any]
    axis: str | None = None

    def on(self, axis: str) -> Part:
        """The same on another axis."""
        return self._replace(axis=axis)


NO_TERMS: dict[str, Parameter] = {}


class File(NamedTuple):
    """An encoding (none, or a sum of several), and its calls: keywords of the oracles, a mask by its name.

    terms: key_bias and sinks, which every call gets.
    """

    parts: list[Part]
    cases: dict[str, dict[str, Any]]
    equation: str
    source: str
    sizes: Sizes = Sizes()
    scale: float = WIDTH**-0.5
    terms: dict[str, Parameter] = NO_TERMS


# --- the encodings


def shaw(left: int, right: int, *, heads: int = 1, values: bool = False) -> Part:
    """Clipped tables of left + 1 + right rows."""
    meaning = (
        f"[heads or 1, rows, D]; row 0 is offset -{left} and every one before it, the last row is offset {right} and "
        "every one after it"
    )
    table = Parameter((heads, left + 1 + right, WIDTH), meaning)
    parameters = {"relative_keys": table} | ({"relative_values": table} if values else {})
    settings = {"max_distance": [left, right]}
    return Part("shaw", parameters, settings, "shaw", {"max_distance": (left, right)})


def relative(max_length: int, *, heads: int = 1, causal: bool = False) -> Part:
    """A row for every offset; causal: the Music Transformer's own, without the future."""
    last = 0 if causal else max_length - 1
    meaning = f"[heads or 1, rows, D]; row 0 is offset {1 - max_length}, the last row is offset {last}"
    table = Parameter((heads, max_length + last, WIDTH), meaning)
    oracle = "music_transformer" if causal else "generalised"
    return Part("relative", {"relative_keys": table}, {"max_length": max_length, "causal": causal}, oracle, {})


def transformer_xl(*, interleaved: bool = False, learned_length: int | None = None) -> Part:
    """Sinusoids as wide as all heads together, projected; or with learned_length a table in their place."""
    biases = {f"pos_bias_{one}": Parameter((HEADS, WIDTH), f"{one} [heads, D]") for one in "uv"}
    if learned_length is not None:
        meaning = (
            f"W R, learned [heads, rows, D]; row 0 is offset {1 - learned_length} (i - j = {learned_length - 1}), the "
            f"last row is offset {learned_length - 1}"
        )
        table = {"relative_keys": Parameter((HEADS, 2 * learned_length - 1, WIDTH), meaning)}
        settings = {"learned": True, "max_length": learned_length}
        return Part("transformer_xl", table | biases, settings, "transformer_xl", {})
    total = HEADS * WIDTH
    meaning = "W [heads * D, E]; row h * D + c makes feature c of head h"
    weight = {"linear_pos.weight": Parameter((total, total), meaning)}
    settings = {"learned": False, "embed_dim": total, "interleaved": interleaved}
    return Part("transformer_xl", weight | biases, settings, "transformer_xl", {"interleaved": interleaved})


def t5(num_buckets: int, max_distance: int, *, bidirectional: bool) -> Part:
    """A bias a bucket."""
    future = "the second half of the rows is the future" if bidirectional else "row 0 is also the whole future"
    meaning = f"[num_buckets, heads]; row 0 is the bucket of offset 0; {future}"
    shared = {"max_distance": max_distance, "bidirectional": bidirectional}
    parameters = {"bias": Parameter((num_buckets, HEADS), meaning)}
    return Part("t5", parameters, {"num_buckets": num_buckets} | shared, "t5", shared)


def alibi(*, signed: bool = False) -> Part:
    """No parameters; the paper's has no settings."""
    settings = {"signed": True} if signed else {}
    return Part("alibi", {}, settings, "alibi", settings)


def kerple(kind: str) -> Part:
    """r1 and r2 of every head."""
    parameters = {name: Parameter((HEADS,), f"{name} [heads], above 0", positive=True) for name in ("r1", "r2")}
    return Part("kerple", parameters, {"kind": kind}, "kerple", {"kind": kind})


def sandwich(width: int) -> Part:
    """No parameters."""
    return Part("sandwich", {}, {"width": width}, "sandwich", {"width": width})


def disentangled(rows: int, max_distance: int, *, bucketed: bool) -> Part:
    """DeBERTa's rows, K a side, and both projections; bucketed: as DeBERTa-v2."""
    total = HEADS * WIDTH
    meaning = (
        f"P [2 K, E]; row 0 is offset {rows} and every one after it, row {rows} is offset 0, the last row is offset "
        f"{1 - rows} and every one before it"
    )
    if bucketed:
        meaning = "P [2 K, E]; row 0 is the most distant future, row K is offset 0, the last row the most distant past"
    parameters = {"relative_embeddings": Parameter((2 * rows, total), meaning)}
    for letter, name in {"k": "pos_key_proj", "q": "pos_query_proj"}.items():
        feature = "row h * D + c makes feature c of head h"
        parameters[f"{name}.weight"] = Parameter((total, total), f"W_{letter} [heads * D, E]; {feature}")
        parameters[f"{name}.bias"] = Parameter((total,), f"w_{letter} [heads * D]")
    settings = {"max_distance": max_distance, "num_buckets": rows if bucketed else None}
    oracle_settings = {"max_distance": max_distance} if bucketed else {}
    return Part("disentangled", parameters, settings, "disentangled", oracle_settings)


def grid_table(name: str, *, extra: int = 0) -> Part:
    """A table over "y" and "x": a bias, or a row of features."""
    rows = (2 * GRID[0] - 1) * (2 * GRID[1] - 1)
    order = (
        f"row ({GRID[0] - 1} - dy) * {2 * GRID[1] - 1} + ({GRID[1] - 1} - dx) is offset (dy, dx), key position - query "
        "position"
    )
    settings = {"sizes": list(GRID), "axes": ["y", "x"]}
    oracle_settings: dict[str, Any] = {"sizes": GRID, "axes": ("y", "x")}
    if name == "grid_embedding":
        table = Parameter((HEADS, rows, WIDTH), f"[heads or 1, rows, D]; {order}")
        return Part(name, {"relative_keys": table}, settings, name, oracle_settings)
    last = f"; then from the class token, to it, and between two: rows {rows}, {rows + 1}, {rows + 2}" if extra else ""
    table = Parameter((rows + extra, HEADS), f"[rows, heads]; {order}{last}")
    settings, oracle_settings = settings | {"extra": extra}, oracle_settings | {"extra": extra}
    return Part(name, {"bias": table}, settings, name, oracle_settings)


def log_grid(hidden: int) -> Part:
    """Swin V2's network over "y" and "x"."""
    mlp = "function.mlp."
    parameters = {
        f"{mlp}0.weight": Parameter((hidden, 2), "W1 [hidden, axes]"),
        f"{mlp}0.bias": Parameter((hidden,), "b1 [hidden]"),
        f"{mlp}2.weight": Parameter((HEADS, hidden), "W2 [heads, hidden]"),
    }
    settings = {"sizes": list(GRID), "hidden": hidden, "axes": ["y", "x"]}
    return Part("log_grid", parameters, settings, "log_grid", {"sizes": GRID, "axes": ("y", "x")})


def rope(
    *,
    base: float = 10000.0,
    rotary_dim: int = 16,
    interleaved: bool = False,
    scaling: dict[str, Any] | None = None,
    rule: Rule | None = None,
) -> Part:
    """A rotation; scaling as in Hugging Face's configs, rule: the same for the oracle, but where it is linear."""
    shared = {"base": base, "rotary_dim": rotary_dim, "interleaved": interleaved}
    oracle_settings = shared | {"factor": 1.0 if scaling is None else scaling["factor"], "rule": rule}
    return Part("rope", {}, shared | {"scaling": scaling}, "rope", oracle_settings)


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
YARN_RULE = Rule("yarn_code", 2048, low=1.0, high=32.0, root=0.1 * math.log(4.0) + 1.0)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LLAMA3_RULE = Rule("llama3", 8192, low=1.0, high=4.0)
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}
DYNAMIC_RULE = Rule("dynamic", 16)
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "short_factor": [1.0, 1.0, 1.0, 1.25, 1.25, 1.5, 1.5, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
}
LONGROPE_RULE = Rule(
    "longrope",
    16,
    root=math.sqrt(1.0 + math.log(4.0) / math.log(16.0)),
    short=tuple(LONGROPE["short_factor"]),
    long=tuple(LONGROPE["long_factor"]),
)


# --- the calls

FULL: dict[str, dict[str, Any]] = {"full": {}}
CAUSAL: dict[str, dict[str, Any]] = {"causal": {"is_causal": True}}
START: dict[str, dict[str, Any]] = {"start": {"query_position": 3, "key_position": 1}}
FAR_APART: dict[str, dict[str, Any]] = {"far": {"query_position": 300}}
WINDOW: dict[str, dict[str, Any]] = {"window": {"window": (2, 1)}}
KEY_MASK: dict[str, dict[str, Any]] = {"key_mask": {"key_mask": "key_mask"}}
LEFT_PADDING: dict[str, dict[str, Any]] = {"left_padding": {"is_causal": True, "key_mask": "left_padding"}}
CROSS = Sizes(queries=4, keys=7)
END_ALIGNED: dict[str, dict[str, Any]] = {"causal": {"is_causal": True, "query_position": 3}}
FAR = Sizes(batch=1, queries=3, keys=140, width=2)  # far enough for the last of T5's buckets
FAR_PAST: dict[str, dict[str, Any]] = {"past": {"query_position": 137}}
FAR_FUTURE: dict[str, dict[str, Any]] = {"future": {}}
FAR_CAUSAL: dict[str, dict[str, Any]] = {"causal": {"is_causal": True, "query_position": 137}}
WIDE = Sizes(batch=1, width=16)
THREE_CALLS = FULL | CAUSAL | START
KEY_BIAS = {"key_bias": Parameter((2, HEADS, 6), "a [B, H, Lk], a number per batch element, head and key")}


def capped(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same calls with a cap that scores of size one reach."""
    return {name: {**call, "softcap": 1.5} for name, call in cases.items()}


Y, X = [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]
ON_GRID: dict[str, dict[str, Any]] = {
    "full": {"axes": {"y": Y, "x": X}},
    "causal": {"axes": {"y": Y, "x": X}, "is_causal": True},
}
BEHIND_A_TOKEN: dict[str, dict[str, Any]] = {"full": {"axes": {"y": [None, *Y], "x": [None, *X]}}}
ON_A_PAGE: dict[str, dict[str, Any]] = {"full": {"axes": {"x": [10, 60, 200, 10, 80, 10], "y": [5, 5, 6, 30, 31, 90]}}}
NOTES: dict[str, dict[str, Any]] = {
    "causal": {"axes": {"time": [0, 0, 0, 4, 4, 6], "pitch": [3, 7, 10, 5, 8, 3]}, "is_causal": True}
}

FILES: dict[str, File] = {
    "none": File([], FULL | CAUSAL | START | WINDOW | KEY_MASK | LEFT_PADDING, eq.PLAIN, eq.VASWANI),
    "shaw_keys": File([shaw(2, 2)], THREE_CALLS, eq.SHAW_KEYS, eq.SHAW),
    "shaw_keys_values": File([shaw(2, 2, values=True)], THREE_CALLS | WINDOW | KEY_MASK, eq.SHAW_BOTH, eq.SHAW),
    "shaw_asymmetric": File([shaw(3, 1, heads=HEADS)], THREE_CALLS, eq.SHAW_KEYS, eq.SHAW),
    "music_transformer": File([relative(6, heads=HEADS, causal=True)], CAUSAL | LEFT_PADDING, eq.RELATIVE, eq.HUANG),
    "relative": File([relative(8, heads=HEADS)], THREE_CALLS | WINDOW | KEY_MASK, eq.RELATIVE, eq.HUANG),
    "relative_cross": File([relative(7)], FULL | END_ALIGNED | START, eq.RELATIVE, eq.HUANG, CROSS),
    "transformer_xl": File([transformer_xl()], THREE_CALLS, eq.XL + eq.SINES_FIRST, eq.DAI),
    "transformer_xl_interleaved": File(
        [transformer_xl(interleaved=True)], THREE_CALLS, eq.XL + eq.SIDE_BY_SIDE, eq.DAI
    ),
    "transformer_xl_learned": File([transformer_xl(learned_length=8)], THREE_CALLS, eq.XL, eq.DAI),
    "t5_bidirectional": File([t5(32, 128, bidirectional=True)], FAR_PAST | FAR_FUTURE, eq.T5, eq.RAFFEL, FAR, 1.0),
    "t5_unidirectional": File([t5(32, 128, bidirectional=False)], FAR_PAST | FAR_CAUSAL, eq.T5, eq.RAFFEL, FAR, 1.0),
    "alibi_4_heads": File([alibi()], THREE_CALLS, eq.ALIBI, eq.PRESS, Sizes(heads=4)),
    "alibi_3_heads": File([alibi()], THREE_CALLS, eq.ALIBI, eq.PRESS, Sizes(heads=3)),
    "alibi_signed": File([alibi(signed=True)], THREE_CALLS, eq.ALIBI_SIGNED, eq.PRESS, Sizes(heads=4)),
    "kerple_log": File([kerple("log")], THREE_CALLS, eq.KERPLE_LOG, eq.CHI),
    "kerple_power": File([kerple("power")], THREE_CALLS, eq.KERPLE_POWER, eq.CHI),
    "sandwich": File([sandwich(128)], THREE_CALLS, eq.SANDWICH, eq.CHI_2023),
    "rope": File([rope()], THREE_CALLS, eq.ROPE + eq.HALVES, eq.SU, WIDE, 0.25),
    "rope_interleaved": File([rope(interleaved=True)], THREE_CALLS, eq.ROPE + eq.NEIGHBOURS, eq.SU, WIDE, 0.25),
    "rope_partial": File([rope(rotary_dim=8)], FULL | CAUSAL, eq.ROPE + eq.HALVES, eq.SU, WIDE, 0.25),
    "rope_linear": File(
        [rope(scaling=LINEAR)],
        FULL | FAR_APART,
        eq.ROPE + eq.HALVES + "; every angle is divided by factor",
        eq.CHEN,
        WIDE,
        0.25,
    ),
    "rope_yarn": File(
        [rope(scaling=YARN, rule=YARN_RULE)],
        FULL | FAR_APART,
        eq.ROPE + eq.HALVES + eq.YARN_ANGLES,
        eq.PENG,
        WIDE,
        0.25,
    ),
    "rope_llama3": File(
        [rope(base=500000.0, scaling=LLAMA3, rule=LLAMA3_RULE)],
        FULL | FAR_APART,
        eq.ROPE + eq.HALVES + eq.LLAMA3_ANGLES,
        eq.LLAMA,
        WIDE,
        0.25,
    ),
    "rope_dynamic": File(
        [rope(scaling=DYNAMIC, rule=DYNAMIC_RULE)],
        FULL | FAR_APART,
        eq.ROPE + eq.HALVES + eq.DYNAMIC_ANGLES,
        eq.HUGGING_FACE,
        WIDE,
        0.25,
    ),
    "rope_longrope": File(
        [rope(scaling=LONGROPE, rule=LONGROPE_RULE)],
        FULL | FAR_APART,
        eq.ROPE + eq.HALVES + eq.LONGROPE_ANGLES,
        eq.DING,
        WIDE,
        0.25,
    ),
    "deberta": File([disentangled(3, 3, bucketed=False)], THREE_CALLS, eq.DEBERTA + eq.CLIPPED, eq.HE, scale=12**-0.5),
    "deberta_buckets": File(
        [disentangled(4, 6, bucketed=True)], THREE_CALLS, eq.DEBERTA + eq.BUCKETED, eq.HE, scale=12**-0.5
    ),
    "grid_bias": File([grid_table("grid_bias")], ON_GRID, eq.GRID_BIAS, eq.LIU),
    "grid_bias_class_token": File(
        [grid_table("grid_bias", extra=3)],
        BEHIND_A_TOKEN,
        eq.GRID_BIAS + eq.CLASS_TOKEN,
        eq.BAO,
        Sizes(queries=7, keys=7),
    ),
    "grid_embedding": File([grid_table("grid_embedding")], ON_GRID, eq.GRID_EMBEDDING, eq.LIU),
    "log_grid": File([log_grid(5)], ON_GRID, eq.LOG_GRID, eq.LIU_2022),
    "t5_axes": File(
        [t5(8, 16, bidirectional=True), t5(8, 128, bidirectional=True).on("x"), t5(8, 128, bidirectional=True).on("y")],
        ON_A_PAGE,
        eq.T5_AXES,
        eq.HUANG_2022,
    ),
    "relative_axes": File(
        [relative(6, heads=HEADS), relative(8, heads=HEADS).on("time"), relative(8, heads=HEADS).on("pitch")],
        NOTES,
        eq.RELATIVE_AXES,
        eq.HUANG,
    ),
    "sum": File(
        [transformer_xl(), shaw(2, 2, values=True), t5(8, 6, bidirectional=True)],
        THREE_CALLS,
        eq.SUM,
        "; ".join((eq.DAI, eq.SHAW, eq.RAFFEL)),
    ),
    "key_bias": File([], THREE_CALLS | LEFT_PADDING, eq.KEY_BIAS, eq.LIN, terms=KEY_BIAS),
    "softcap": File([], capped(THREE_CALLS), eq.SOFTCAP, eq.GEMMA),
    "softcap_alibi_key_bias": File(
        [alibi()], capped(THREE_CALLS), eq.SOFTCAP_ALIBI, f"{eq.GEMMA}; {eq.PRESS}", terms=KEY_BIAS
    ),
    "sinks_per_head": File(
        [],
        THREE_CALLS | LEFT_PADDING,
        eq.SINKS,
        eq.OPENAI,
        terms={"sinks": Parameter((HEADS,), "[H], a logit per head")},
    ),
    "sinks_per_row": File(
        [],
        THREE_CALLS,
        eq.SINKS.replace("sinks_h", "sinks_hi"),
        "Inkling 2, as Hugging Face's Transformers has it",
        terms={"sinks": Parameter((2, HEADS, 6), "[B, H, Lq], a logit per batch element, head and query")},
    ),
}

"""Which test vectors there are: for every file its encodings, the calls it answers, its equation and its source.

The equations are written under the names of the file's tensors, with d = j - i, key position - query position. A case
is keywords of the oracles (`tests/oracle`), with a mask by its name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

MASKS = {
    "key_mask": np.array([[True, True, True, True, True, False], [True, True, True, False, True, False]]),
    "left_padding": np.array([[True, True, True, True, True, True], [False, False, True, True, True, True]]),
}
WIDTH, HEADS = 4, 2


class Sizes(NamedTuple):
    """query [B, H, Lq, D], key and value [B, H, Lk, D]."""

    batch: int = 2
    heads: int = HEADS
    queries: int = 6
    keys: int = 6
    width: int = WIDTH


class Parameter(NamedTuple):
    """A table or weight of an encoding, and what its axes and rows are."""

    shape: tuple[int, ...]
    meaning: str


class Part(NamedTuple):
    """One encoding.

    settings: what the file states. oracle_settings: the same for `tests.oracle`, which reads some off a parameter's
    shape, and names linear scaling otherwise.
    """

    name: str
    parameters: dict[str, Parameter]
    settings: dict[str, Any]
    oracle: str
    oracle_settings: dict[str, Any]


class File(NamedTuple):
    """An encoding (none, or a sum of several), and its calls: keywords of the oracles, a mask by its name."""

    parts: list[Part]
    cases: dict[str, dict[str, Any]]
    equation: str
    source: str
    sizes: Sizes = Sizes()
    scale: float = WIDTH**-0.5


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


def alibi() -> Part:
    """No parameters, no settings."""
    return Part("alibi", {}, {}, "alibi", {})


def rope(*, rotary_dim: int = 16, interleaved: bool = False, linear: float | None = None) -> Part:
    """A rotation; linear: what positions are divided by."""
    shared = {"base": 10000.0, "rotary_dim": rotary_dim, "interleaved": interleaved}
    scaling = None if linear is None else {"rope_type": "linear", "factor": linear}
    return Part("rope", {}, shared | {"scaling": scaling}, "rope", shared | {"factor": linear or 1.0})


# --- the calls

FULL: dict[str, dict[str, Any]] = {"full": {}}
CAUSAL: dict[str, dict[str, Any]] = {"causal": {"is_causal": True}}
START: dict[str, dict[str, Any]] = {"start": {"query_position": 3, "key_position": 1}}
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

# --- the equations, in the papers' order

PLAIN = "S_ij = scale * q_i . k_j;  O_i = sum_j softmax(S)_ij v_j"
RELATIVE = "S_ij = scale * (q_i . k_j + q_i . RK[d]);  O_i = sum_j softmax(S)_ij v_j;  RK = relative_keys"
CLIP = "c = max(-left, min(d, right)), (left, right) = max_distance;  RK = relative_keys"
SHAW_KEYS = "S_ij = scale * q_i . (k_j + RK[c]);  O_i = sum_j softmax(S)_ij v_j;  " + CLIP
SHAW_BOTH = (
    "S_ij = scale * q_i . (k_j + RK[c]);  O_i = sum_j softmax(S)_ij (v_j + RV[c]);  " + CLIP + ", RV = relative_values"
)
XL = "S_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j]);  O_i = sum_j softmax(S)_ij v_j"
SINES_FIRST = ";  R[p] = (sin(p f_0), ..., sin(p f_n), cos(p f_0), ..., cos(p f_n)), f_t = 10000^(-2 t / E)"
SIDE_BY_SIDE = ";  R[p] = (sin(p f_0), cos(p f_0), sin(p f_1), cos(p f_1), ...), f_t = 10000^(-2 t / E)"
T5 = "S_ij = scale * q_i . k_j + bias[bucket(d), h];  O_i = sum_j softmax(S)_ij v_j"
ALIBI = "S_ij = scale * q_i . k_j - slope_h |d|;  O_i = sum_j softmax(S)_ij v_j"
ROPE = (
    "S_ij = scale * (Rot(i) q_i) . (Rot(j) k_j);  O_i = sum_j softmax(S)_ij v_j;  Rot(p) turns pair t of the first "
    "rotary_dim features by p * base^(-2 t / rotary_dim), "
)
HALVES = "pair t: features t and t + rotary_dim / 2"
NEIGHBOURS = "pair t: features 2 t and 2 t + 1"
SUM = (
    "S_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j] + q_i . RK[c]) + bias[bucket(d), h];  "
    "O_i = sum_j softmax(S)_ij (v_j + RV[c]);  " + CLIP + ", RV = relative_values" + SINES_FIRST
)

VASWANI = "Vaswani et al. 2017, eq. 1"
SHAW = "Shaw, Uszkoreit and Vaswani 2018, eq. 1 to 4"
HUANG = "Huang et al. 2018 (Music Transformer), section 3.4"
DAI = "Dai et al. 2019 (Transformer-XL), section 3.3"
RAFFEL = "Raffel et al. 2020 (T5), section 2.1, and the buckets of its published code"
PRESS = "Press, Smith and Lewis 2022 (ALiBi), section 3, and the slopes of its published code"
SU = "Su et al. 2021 (RoFormer), eq. 14, 15 and 34"
CHEN = "Chen et al. 2023 (position interpolation), section 2.3"

FILES: dict[str, File] = {
    "none": File([], FULL | CAUSAL | START | WINDOW | KEY_MASK | LEFT_PADDING, PLAIN, VASWANI),
    "shaw_keys": File([shaw(2, 2)], THREE_CALLS, SHAW_KEYS, SHAW),
    "shaw_keys_values": File([shaw(2, 2, values=True)], THREE_CALLS | WINDOW | KEY_MASK, SHAW_BOTH, SHAW),
    "shaw_asymmetric": File([shaw(3, 1, heads=HEADS)], THREE_CALLS, SHAW_KEYS, SHAW),
    "music_transformer": File([relative(6, heads=HEADS, causal=True)], CAUSAL | LEFT_PADDING, RELATIVE, HUANG),
    "relative": File([relative(8, heads=HEADS)], THREE_CALLS | WINDOW | KEY_MASK, RELATIVE, HUANG),
    "relative_cross": File([relative(7)], FULL | END_ALIGNED | START, RELATIVE, HUANG, CROSS),
    "transformer_xl": File([transformer_xl()], THREE_CALLS, XL + SINES_FIRST, DAI),
    "transformer_xl_interleaved": File([transformer_xl(interleaved=True)], THREE_CALLS, XL + SIDE_BY_SIDE, DAI),
    "transformer_xl_learned": File([transformer_xl(learned_length=8)], THREE_CALLS, XL, DAI),
    "t5_bidirectional": File([t5(32, 128, bidirectional=True)], FAR_PAST | FAR_FUTURE, T5, RAFFEL, FAR, 1.0),
    "t5_unidirectional": File([t5(32, 128, bidirectional=False)], FAR_PAST | FAR_CAUSAL, T5, RAFFEL, FAR, 1.0),
    "alibi_4_heads": File([alibi()], THREE_CALLS, ALIBI, PRESS, Sizes(heads=4)),
    "alibi_3_heads": File([alibi()], THREE_CALLS, ALIBI, PRESS, Sizes(heads=3)),
    "rope": File([rope()], THREE_CALLS, ROPE + HALVES, SU, WIDE, 0.25),
    "rope_interleaved": File([rope(interleaved=True)], THREE_CALLS, ROPE + NEIGHBOURS, SU, WIDE, 0.25),
    "rope_partial": File([rope(rotary_dim=8)], FULL | CAUSAL, ROPE + HALVES, SU, WIDE, 0.25),
    "rope_linear": File([rope(linear=4.0)], FULL | START, ROPE + HALVES + "; p is divided by factor", CHEN, WIDE, 0.25),
    "sum": File(
        [transformer_xl(), shaw(2, 2, values=True), t5(8, 6, bidirectional=True)],
        THREE_CALLS,
        SUM,
        "; ".join((DAI, SHAW, RAFFEL)),
    ),
}

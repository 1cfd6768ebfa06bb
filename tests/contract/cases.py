"""The registry: every encoding that the suite tests, each beside its paper's oracle. A new one is a new line in CASES.

A line names the modules that make up the encoding (their sum, where there are several), the oracle of each with its
settings, and what the encoding insists on in a call. `BACKEND_ANSWERS` has a line for each backend that cannot run
everything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor, nn

from relattn import (
    AlibiBias,
    DisentangledEmbedding,
    FunctionBias,
    KerpleBias,
    KeyQueryEmbedding,
    RelativeEmbedding,
    RotaryEmbedding,
    SandwichBias,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
)
from relattn.backends.select import BACKENDS
from tests.contract.blocks import TESTED_BACKENDS
from tests.contract.settings import FAR, Setting
from tests.oracle.rope import Rule


class Part(NamedTuple):
    """One operand of an encoding: the module, the name of its oracle, and the oracle's settings.

    draw: makes parameters of normal numbers.
    """

    module: nn.Module
    oracle: str
    settings: dict[str, Any]
    draw: Callable[[np.ndarray], np.ndarray] = lambda normal: normal


def relative(s: Setting, *, shared: bool = True, **settings: Any) -> Part:
    """RelativeEmbedding that reaches every visible offset."""
    module = RelativeEmbedding(s.head_dim, s.reach(), num_heads=None if shared else s.num_heads, **settings)
    return Part(module, "generalised", settings)


def relative_short(s: Setting, max_length: int, beyond: str, *, causal: bool = False, shared: bool = True) -> Part:
    """RelativeEmbedding of few rows, so that `beyond` matters."""
    module = RelativeEmbedding(
        s.head_dim, max_length, num_heads=None if shared else s.num_heads, causal=causal, beyond=beyond
    )
    return Part(module, "generalised", {"causal": causal, "beyond": beyond})


def music_transformer(s: Setting) -> Part:
    """RelativeEmbedding as Huang et al. have it: causal, one table a head."""
    return Part(RelativeEmbedding(s.head_dim, s.reach(), num_heads=s.num_heads, causal=True), "music_transformer", {})


def shaw(s: Setting, max_distance: int | tuple[int, int] = 2, *, shared: bool = True, values: bool = True) -> Part:
    """ShawEmbedding."""
    module = ShawEmbedding(s.head_dim, max_distance, num_heads=None if shared else s.num_heads, values=values)
    return Part(module, "shaw", {"max_distance": max_distance})


def txl(s: Setting, *, embed_dim: int | None = None, interleaved: bool = False) -> Part:
    """TransformerXLEmbedding over projected sinusoids."""
    module = TransformerXLEmbedding(s.num_heads, s.head_dim, embed_dim=embed_dim, interleaved=interleaved)
    return Part(module, "transformer_xl", {"interleaved": interleaved})


def txl_learned(s: Setting) -> Part:
    """TransformerXLEmbedding over a learned table."""
    return Part(TransformerXLEmbedding(s.num_heads, s.head_dim, max_length=s.reach()), "transformer_xl", {})


def t5(s: Setting, *, bidirectional: bool = True, num_buckets: int = 8, max_distance: int = 6) -> Part:
    """T5Bias, small enough for short sequences to reach its last bucket."""
    settings = {"max_distance": max_distance, "bidirectional": bidirectional}
    return Part(T5Bias(s.num_heads, num_buckets=num_buckets, **settings), "t5", settings)


def alibi(s: Setting, *, given: bool = False, learned: bool = False, signed: bool = False) -> Part:
    """AlibiBias; given: slopes that are no powers of two. Learned ones are drawn like every parameter."""
    slopes = [0.3 + 0.25 * head for head in range(s.num_heads)] if given else None
    module = AlibiBias(s.num_heads, slopes=slopes, learned=learned, signed=signed)
    return Part(module, "alibi", {"given": slopes, "signed": signed})


def within(least: float, largest: float) -> Callable[[np.ndarray], np.ndarray]:
    """Normal numbers to numbers between two bounds."""
    return lambda normal: least + (largest - least) / (1.0 + np.exp(-normal))


def kerple(s: Setting, kind: Literal["log", "power"] = "log") -> Part:
    """KerpleBias, its parameters within the bounds of the published code."""
    return Part(KerpleBias(s.num_heads, kind), "kerple", {"kind": kind}, within(0.05, 1.95))


def sandwich(s: Setting, width: int = 6) -> Part:
    """SandwichBias."""
    return Part(SandwichBias(s.num_heads, width), "sandwich", {"width": width})


class Network(nn.Module):
    """W2 tanh(W1 d / 4 + b1) + b2, for a FunctionBias."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.first, self.last = nn.Linear(1, 3), nn.Linear(3, num_heads)

    def forward(self, offsets: Tensor) -> Tensor:
        return self.last(self.first(offsets.unsqueeze(-1) / 4.0).tanh()).T


def function(s: Setting) -> Part:
    """FunctionBias over a small network."""
    return Part(FunctionBias(Network(s.num_heads), s.num_heads), "function", {})


def key_query(s: Setting, *, shared: bool = True) -> Part:
    """KeyQueryEmbedding that reaches every visible offset."""
    module = KeyQueryEmbedding(s.head_dim, s.reach(), num_heads=None if shared else s.num_heads)
    return Part(module, "key_query", {})


def disentangled(s: Setting, *, num_buckets: int | None = None, **settings: Any) -> Part:
    """DisentangledEmbedding, of few rows, so that the last ones are reached."""
    distance = 4 if num_buckets is None else 6
    module = DisentangledEmbedding(
        s.num_heads, s.head_dim, embed_dim=3, max_distance=distance, num_buckets=num_buckets, **settings
    )
    return Part(module, "disentangled", {} if num_buckets is None else {"max_distance": distance})


BEYOND_ALL = 2 * FAR
"""A trained length that no drawn position reaches."""

ROPE_RULES: dict[str, tuple[dict[str, Any], Rule]] = {
    "yarn": (
        {"rope_type": "yarn", "original_max_position_embeddings": 40, "beta_fast": 6.0, "beta_slow": 0.25},
        Rule("yarn_code", 40, 0.25, 6.0, 0.1 * np.log(3.0) + 1.0),
    ),
    "yarn_rotations": (
        {
            "rope_type": "yarn", "original_max_position_embeddings": 20, "beta_fast": 8, "beta_slow": 0.125,
            "attention_factor": 1.5, "ramp": "rotations",
        },
        Rule("yarn", 20, 0.125, 8, 1.5),
    ),
    "llama3": (
        {
            "rope_type": "llama3", "original_max_position_embeddings": 16, "low_freq_factor": 0.125,
            "high_freq_factor": 4,
        },
        Rule("llama3", 16, 0.125, 4),
    ),
    "dynamic": (
        {"rope_type": "dynamic", "original_max_position_embeddings": 3},
        Rule("dynamic", 3),
    ),
    "dynamic_below": (
        {"rope_type": "dynamic", "original_max_position_embeddings": BEYOND_ALL},
        Rule("dynamic", BEYOND_ALL),
    ),
    "longrope": (
        {"rope_type": "longrope", "original_max_position_embeddings": 4},
        Rule("longrope", 4, root=np.sqrt(1.0 + np.log(3.0) / np.log(4.0))),
    ),
    "longrope_below": (
        {"rope_type": "longrope", "original_max_position_embeddings": BEYOND_ALL, "attention_factor": 1.25},
        Rule("longrope", BEYOND_ALL, root=1.25),
    ),
}  # fmt: skip


def rope(
    s: Setting, *, base: float = 10000.0, factor: float = 1.0, interleaved: bool = False, part: int = 0, rule: str = ""
) -> Part:
    """RotaryEmbedding; part: rotate only that many features; rule: scale by one of ROPE_RULES, not linearly."""
    ours, oracle = ROPE_RULES[rule] if rule else ({"rope_type": "linear"}, None)
    if oracle is not None and oracle.name == "longrope":
        pairs = (part or s.head_dim) // 2
        short, long = ([first + 0.375 * t for t in range(pairs)] for first in (0.75, 2.5))
        ours = {**ours, "short_factor": short, "long_factor": long}
        oracle = oracle._replace(short=tuple(short), long=tuple(long))
    scaling = None if factor == 1.0 else {**ours, "factor": factor}
    width = {"rotary_dim": part} if part else {}
    module = RotaryEmbedding(s.head_dim, base=base, interleaved=interleaved, scaling=scaling, **width)
    return Part(module, "rope", {"base": base, "factor": factor, "interleaved": interleaved, "rule": oracle, **width})


@dataclass(frozen=True)
class EncodingCase:
    """Encodings to be added up for a setting, and what they need of it: a head count, causality."""

    parts: Callable[[Setting], list[Part]]
    num_heads: int | None = None
    is_causal: bool | None = None

    def requirements(self) -> dict[str, Any]:
        """For `make_setting`."""
        return {"num_heads": self.num_heads, "is_causal": self.is_causal}


class HandTable(NamedTuple):
    """One table of a ScoreTerms made by hand; rows None: as many as refuse nothing that is visible."""

    shared: bool
    first: int = 0
    rows: int | None = None
    beyond: str = "error"


@dataclass(frozen=True)
class TermsCase:
    """ScoreTerms made by hand.

    tables: by the name of the term. relative_width: the width of a separate relative query. rewrites: query and key
    come rewritten.
    """

    tables: dict[str, HandTable]
    relative_width: int | None = None
    rewrites: bool = False

    def requirements(self) -> dict[str, Any]:
        """It takes any setting."""
        return {}


def of(*makers: Callable[[Setting], Part], **requirements: Any) -> EncodingCase:
    """The case of a sum of parts."""
    return EncodingCase(lambda s: [make(s) for make in makers], **requirements)


CASES: dict[str, EncodingCase | TermsCase] = {
    "none": of(),
    "music_transformer": of(music_transformer, is_causal=True),
    "relative": of(relative),
    "relative_per_head": of(partial(relative, shared=False)),
    "relative_clamp": of(partial(relative_short, max_length=3, beyond="clamp")),
    "relative_zero": of(partial(relative_short, max_length=3, beyond="zero", shared=False)),
    "relative_causal_clamp": of(partial(relative_short, max_length=2, beyond="clamp", causal=True)),
    "relative_causal_zero": of(partial(relative_short, max_length=2, beyond="zero", causal=True)),
    "shaw": of(shaw),
    "shaw_keys_only": of(partial(shaw, values=False)),
    "shaw_asymmetric": of(partial(shaw, max_distance=(3, 1))),
    "shaw_per_head": of(partial(shaw, max_distance=(1, 0), shared=False)),
    "txl": of(txl),
    "txl_interleaved": of(partial(txl, interleaved=True)),
    "txl_embed_dim": of(partial(txl, embed_dim=8)),
    "txl_learned": of(txl_learned),
    "t5": of(t5),
    "t5_one_direction": of(partial(t5, bidirectional=False)),
    "key_query": of(key_query),
    "key_query_per_head": of(partial(key_query, shared=False)),
    "disentangled": of(disentangled),
    "disentangled_buckets": of(partial(disentangled, num_buckets=6)),
    "disentangled_c2p": of(partial(disentangled, p2c=False)),
    "disentangled_p2c": of(partial(disentangled, num_buckets=6, c2p=False)),
    "alibi_4_heads": of(alibi, num_heads=4),
    "alibi_3_heads": of(alibi, num_heads=3),
    "alibi_6_heads": of(alibi, num_heads=6),
    "alibi_signed": of(partial(alibi, signed=True)),
    "alibi_given": of(partial(alibi, given=True)),
    "alibi_learned": of(partial(alibi, learned=True)),
    "alibi_given_learned_signed": of(partial(alibi, given=True, learned=True, signed=True)),
    "kerple": of(kerple),
    "kerple_power": of(partial(kerple, kind="power")),
    "sandwich": of(sandwich),
    "function": of(function),
    "rope": of(rope),
    "rope_interleaved": of(partial(rope, interleaved=True)),
    "rope_partial": of(partial(rope, part=2)),
    "rope_scaled": of(partial(rope, factor=3.0)),
    "rope_yarn": of(partial(rope, factor=3.0, rule="yarn", base=50.0)),
    "rope_yarn_rotations": of(partial(rope, factor=3.0, rule="yarn_rotations", base=50.0, interleaved=True)),
    "rope_yarn_partial": of(partial(rope, factor=3.0, rule="yarn", part=2)),
    "rope_llama3": of(partial(rope, factor=3.0, rule="llama3", base=50.0)),
    "rope_dynamic": of(partial(rope, factor=3.0, rule="dynamic", base=50.0)),
    "rope_dynamic_below": of(partial(rope, factor=3.0, rule="dynamic_below", interleaved=True)),
    "rope_longrope": of(partial(rope, factor=3.0, rule="longrope", base=50.0, interleaved=True)),
    "rope_longrope_below": of(partial(rope, factor=3.0, rule="longrope_below", part=2)),
    "rope_other_base": of(partial(rope, base=50.0, interleaved=True)),
    "txl+shaw+t5": of(txl, shaw, t5),
    "rope+shaw": of(rope, shaw),
    "rope+alibi": of(rope, alibi),
    "relative+relative_short": of(relative, partial(relative_short, max_length=2, beyond="clamp", shared=False)),
    "clamp+zero": of(
        partial(relative_short, max_length=2, beyond="clamp"), partial(relative_short, max_length=4, beyond="zero")
    ),
    "zero+zero": of(
        partial(relative_short, max_length=3, beyond="zero"),
        partial(relative_short, max_length=2, beyond="zero", causal=True),
    ),
    "shaw+shaw_values": of(partial(shaw, max_distance=(3, 1)), partial(shaw, max_distance=(0, 2), shared=False)),
    "t5+alibi": of(t5, alibi),
    "kerple+function+shaw": of(kerple, function, shaw),
    "key_query+shaw": of(key_query, shaw),
    "disentangled+key_query+t5": of(disentangled, partial(key_query, shared=False), t5),
    "terms_all": TermsCase(
        {
            "relative_keys": HandTable(shared=False, first=-2, rows=4, beyond="clamp"),
            "relative_queries": HandTable(shared=False, first=-1, rows=3, beyond="zero"),
            "relative_values": HandTable(shared=False, first=-3, rows=5, beyond="clamp"),
            "bias": HandTable(shared=False, first=-2, rows=6, beyond="zero"),
        },
        relative_width=3,
    ),
    "terms_all_error": TermsCase(
        {
            name: HandTable(shared=name != "bias")
            for name in ("relative_keys", "relative_queries", "relative_values", "bias")
        },
        relative_width=5,
        rewrites=True,
    ),
    "terms_callers_query": TermsCase(
        {"relative_keys": HandTable(shared=False, first=-2, rows=4, beyond="clamp")}, rewrites=True
    ),
    "terms_relative_queries": TermsCase({"relative_queries": HandTable(shared=True, first=1, rows=2, beyond="clamp")}),
    "terms_bias": TermsCase({"bias": HandTable(shared=True, first=-4, rows=2, beyond="zero")}),
}


TIED_TO_THE_LENGTH = ("rope_dynamic", "rope_longrope")
"""Keys that arrive in another call are rotated otherwise: decoding through a cache is not the full pass."""


def sdpa_answer(case: EncodingCase | TermsCase, setting: Setting, return_lse: bool) -> str:
    """PyTorch's own attention has no tables, caps, key biases or sinks, no masks but an explicit one or index
    causality, and no lse.
    """
    if setting.softcap is not None or setting.key_bias is not None or setting.sinks is not None:
        return "refuses"
    rotations_only = isinstance(case, EncodingCase) and all(part.oracle == "rope" for part in case.parts(setting))
    if not rotations_only or return_lse or setting.key_mask is not None or setting.segment_ids is not None:
        return "refuses"
    starts = (setting.query_position, setting.key_position)
    plain = setting.window is None and all(isinstance(start, int) and start == 0 for start in starts)
    one_mask = setting.attn_mask is None or not setting.is_causal
    return "runs" if plain and one_mask else "either"


BACKEND_ANSWERS: dict[str, Callable[[EncodingCase | TermsCase, Setting, bool], str]] = {
    "sdpa": sdpa_answer,
    "triton": lambda *_: "refuses",  # on a CPU; `tests.triton` runs its kernels
    "native": lambda *_: "either",  # float32; `tests.native` runs its kernels
}


def expected_answer(backend: str, case: EncodingCase | TermsCase, setting: Setting, return_lse: bool) -> str:
    """Whether a named backend "runs" a call, "refuses" it, or may do "either"; without a line above it runs all."""
    return BACKEND_ANSWERS.get(backend, lambda *_: "runs")(case, setting, return_lse)


DIFFERENT = (
    "none", "relative", "relative_per_head", "relative_zero", "relative_causal_clamp", "shaw_asymmetric", "txl", "t5",
    "key_query", "disentangled_buckets", "alibi_3_heads", "rope+shaw", "shaw+shaw_values", "terms_all",
    "terms_all_error", "terms_relative_queries", "terms_bias",
)  # fmt: skip
"""Every kind of table, shared or not, clipped, zero beyond it, or whole."""


def runnable_pairs(names: Iterable[str] = tuple(CASES)) -> list[tuple[str, str]]:
    """Every (case, tested backend) of which the backend runs at least the plainest call."""
    plainest = Setting(1, 1, 1, 1, 1, 2, 1)
    pairs = [(name, backend) for name in names for backend in TESTED_BACKENDS]
    return [(n, b) for n, b in pairs if expected_answer(b, CASES[n], plainest, False) == "runs"]


DTYPES = ("float64", "float32", "bfloat16", "float16")
ALL_BACKENDS = tuple(BACKENDS)

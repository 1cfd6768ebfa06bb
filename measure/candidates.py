"""The candidates: those of `relattn bench`, and what a user would pick instead."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial

from measure.case import case_of
from measure.peers.flex import flex
from measure.peers.formula import plain, sdpa_with_scores
from measure.peers.pairs import sdpa_with_pairs
from relattn.cli.bench import relattn_candidates
from relattn.cli.bench.case import Call, Case
from relattn.cli.bench.workload import Workload

WITH_KEYS = ("relative", "relative-heads", "shaw-keys", "shaw", "transformer-xl")
WITH_BIAS = ("t5", "alibi")
WITH_QUERIES = ("key-query", "disentangled")
ROTATED = "a rotation adds no term to the scores"
KEYS_ALONE = "it is written for relative keys alone"
WHOLE = "measured on whole sequences only"
SEQUENCE_ALONE = "measured for offsets of the sequence alone"


@dataclass(frozen=True)
class Candidate(relattn_candidates.Candidate):
    """One way to attend, also with the encoding's terms made beforehand.

    compiles: the first call at a length compiles.
    """

    compiles: bool = False

    def case(self, workload: Workload) -> Case:
        """The tensors that it gets for a workload."""
        return case_of(self.given(workload))


def _no_arrangement(arrangement: str, workload: Workload) -> str | None:
    if workload.encoding in WITH_QUERIES:
        return KEYS_ALONE
    if workload.on_axes:
        return SEQUENCE_ALONE
    if workload.encoding not in WITH_KEYS:
        return "the encoding has no relative keys to arrange"
    if workload.decoding:
        return "for one query the products are in place"
    if arrangement == "pad_reshape" and not workload.causal:
        return "it is defined for causal self-attention only"
    return None


def _no_plain_formula(workload: Workload) -> str | None:
    if workload.encoding == "rope":
        return ROTATED
    if workload.encoding in WITH_QUERIES:
        return KEYS_ALONE
    if workload.on_axes:
        return SEQUENCE_ALONE
    if workload.decoding or workload.encoding not in WITH_KEYS:
        return None
    return "with relative keys it is one of the four arrangements"


def _no_score_mask(workload: Workload) -> str | None:
    if workload.encoding in ("none", "rope"):
        return "there is no term to hand over as a mask"
    if workload.encoding in WITH_QUERIES:
        return KEYS_ALONE
    return "a mask has no relative values" if workload.encoding == "shaw" else None


def _no_flex(workload: Workload) -> str | None:
    if workload.encoding == "rope":
        return ROTATED
    if workload.encoding in WITH_QUERIES:
        return KEYS_ALONE
    if workload.on_axes:
        return SEQUENCE_ALONE
    if workload.decoding:
        return WHOLE
    if workload.encoding == "shaw":
        return "a score_mod has no relative values"
    if workload.device == "cpu" and workload.training:
        return "FlexAttention has no backward on a CPU"
    return None


def _no_transformers(workload: Workload) -> str | None:
    if workload.on_axes:
        no_gradient = workload.encoding == "layout" and workload.training
        return "its LayoutLMv3 gives the tables of the three biases no gradient" if no_gradient else None
    if workload.encoding not in WITH_BIAS:
        return "measured for T5, ALiBi and several axes only"
    if workload.decoding:
        return WHOLE
    if workload.encoding == "alibi" and not workload.causal:
        return "its ALiBi (Bloom) is causal only"
    return None


def _no_x_transformers(workload: Workload) -> str | None:
    if workload.encoding not in WITH_BIAS:
        return "measured for T5 and ALiBi only"
    if workload.decoding:
        return WHOLE
    return None if importlib.util.find_spec("x_transformers") else "x-transformers is not installed"


def _no_timm(workload: Workload) -> str | None:
    if workload.encoding != "grid-bias":
        return "measured for grid-bias only"
    return None if importlib.util.find_spec("timm") else "timm is not installed"


def _sdpa_with_scores(case: Case) -> Call:
    return sdpa_with_pairs(case) if case.workload.on_axes else sdpa_with_scores(case)


def _transformers(case: Case) -> Call:
    if case.workload.on_axes:
        from measure.peers.axes import transformers_on_axes

        return transformers_on_axes(case)
    from measure.peers.sequence import transformers_attention

    return transformers_attention(case)


def _timm(case: Case) -> Call:
    from measure.peers.axes import timm_attention

    return timm_attention(case)


def _x_transformers(case: Case) -> Call:
    from measure.peers.sequence import x_transformers_attention

    return x_transformers_attention(case)


CANDIDATES: dict[str, Candidate] = {
    **{name: Candidate(one.prepare, one.reason, one.encodes) for name, one in relattn_candidates.CANDIDATES.items()},
    "plain": Candidate(partial(plain, arrangement="strided"), _no_plain_formula),
    **{
        f"plain, {name}": Candidate(partial(plain, arrangement=name), partial(_no_arrangement, name))
        for name in ("gather", "pad_reshape", "diagonals", "strided")
    },
    "sdpa, S as mask": Candidate(_sdpa_with_scores, _no_score_mask),
    "flex": Candidate(flex, _no_flex, compiles=True),
    "transformers": Candidate(_transformers, _no_transformers),
    "x-transformers": Candidate(_x_transformers, _no_x_transformers),
    "timm": Candidate(_timm, _no_timm),
}
"""Every candidate by name, in the order of the tables."""

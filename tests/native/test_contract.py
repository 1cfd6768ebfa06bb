"""Every encoding on the kernels: outputs, lse and every gradient within the budget."""

import numpy as np
import pytest

from tests.contract.cases import CASES
from tests.contract.check import by_formula, check
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import make_subject
from tests.native.sets import RUNNABLE, every_set

HALVES = ("bfloat16", "float16")
LONGEST = 130
"""Across a few small blocks; the float64 formula writes every pair's rows out."""

DIFFERENT = (
    "none", "relative", "relative_per_head", "relative_zero", "relative_causal_clamp", "shaw_asymmetric", "txl", "t5",
    "key_query", "disentangled_buckets", "alibi_3_heads", "rope+shaw", "shaw+shaw_values", "terms_all",
    "terms_all_refuse", "terms_relative_queries", "terms_bias",
)  # fmt: skip
"""Every kind of table, shared or not, clipped, zero beyond it, or whole."""

every_case = pytest.mark.parametrize("name", CASES)
different_cases = pytest.mark.parametrize("name", DIFFERENT)


@pytest.mark.parametrize("instructions", RUNNABLE[:1], indirect=True)
@every_case
def test_short_sequences_are_the_oracles(name: str, instructions: str, rng: np.random.Generator) -> None:
    """Within one group of queries and one panel of keys, whose rest lies outside of the sequence."""
    for _ in range(3):
        setting = random_setting(rng, **CASES[name].requirements(), kind="diagonal")
        check(make_subject(CASES[name], setting, "float32"), "native", "float32", return_lse=bool(rng.integers(3)))


@every_set
@different_cases
def test_sequences_across_blocks(name: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    setting = random_setting(rng, **CASES[name].requirements(), kind="diagonal", longest=LONGEST)
    check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.parametrize("instructions", RUNNABLE[:1], indirect=True)
@different_cases
def test_half_precision(name: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    """The inputs alone, beside float32 parameters, or all of them."""
    dtype, parameters = str(rng.choice(HALVES)), rng.choice(("same", "float32"))
    setting = random_setting(rng, **CASES[name].requirements(), kind="diagonal", longest=LONGEST // 2)
    subject = make_subject(CASES[name], setting, dtype, None if parameters == "same" else parameters)
    check(subject, "native", dtype, truth=by_formula)


@every_set
@pytest.mark.parametrize("widths", [(1, 1), (16, 16), (32, 24), (80, 65), (128, 128), (256, 300)], ids=str)
def test_widths(widths: tuple[int, int], instructions: str, rng: np.random.Generator) -> None:
    """Multiples of a vector and between them; the relative query has a width of its own."""
    setting = Setting(1, 2, 1, 19, 23, *widths, is_causal=True, key_position=-3, seed=int(rng.integers(2**32)))
    for name in ("relative", "terms_all"):
        check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@every_set
@pytest.mark.parametrize("window", [(5, 0), (40, 3), (0, 0)], ids=str)
@pytest.mark.parametrize("name", ["relative_per_head", "shaw_asymmetric", "terms_all"])
def test_windows_that_leave_blocks_out(
    name: str, window: tuple[int, int], instructions: str, rng, small_blocks
) -> None:
    setting = Setting(1, 2, 2, 90, 81, 4, 3, window=window, key_position=2, seed=int(rng.integers(2**32)))
    check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@every_set
@different_cases
def test_the_blocks_that_it_chooses(name: str, instructions: str, rng: np.random.Generator) -> None:
    """Longer than a block of queries and one of keys, with a window or causality now and then."""
    requirements = CASES[name].requirements()
    causal = requirements.get("is_causal")
    setting = Setting(
        1, requirements.get("num_heads") or 2, 1, 210, 400, 8, 8, query_position=190,
        is_causal=bool(rng.integers(2)) if causal is None else causal,
        window=None if rng.integers(2) else (150, 40), seed=int(rng.integers(2**32)),
    )  # fmt: skip
    check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.parametrize("instructions", RUNNABLE[:1], indirect=True)
@pytest.mark.parametrize("mask", ["key_mask", "segments", "boolean", "float"])
def test_masks_across_blocks(mask: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    """With rows that see nothing, and keys that nobody sees."""
    batch, queries, keys = 2, 70, 90
    given = {
        "key_mask": {"key_mask": rng.random((batch, keys)) < 0.3},
        "segments": {"segment_ids": (rng.integers(0, 9, (batch, queries)), rng.integers(0, 5, (batch, keys)))},
        "boolean": {"attn_mask": rng.random((batch, 1, queries, keys)) < 0.05},
        "float": {"attn_mask": np.where(rng.random((1, 2, queries, keys)) < 0.9, -np.inf, rng.normal(size=keys))},
    }[mask]
    setting = Setting(batch, 2, 1, queries, keys, 5, 3, window=(60, 9), **given, seed=int(rng.integers(2**32)))
    check(make_subject(CASES["terms_all"], setting, "float32"), "native", "float32", truth=by_formula)


@every_set
@different_cases
def test_few_queries(name: str, instructions: str, rng: np.random.Generator) -> None:
    """They meet keys where they lie, a chunk at a time: float32, and bfloat16 of any width, under masks and windows."""
    requirements = CASES[name].requirements()
    causal, keys = requirements.get("is_causal"), int(rng.integers(1, 600))
    masks = {
        "key_mask": {"key_mask": rng.random((2, keys)) < 0.6},
        "segments": {"segment_ids": (rng.integers(0, 2, (2, 2)), rng.integers(0, 2, (2, keys)))},
        "none": {},
        "float": {"attn_mask": np.where(rng.random((2, 1, 2, keys)) < 0.3, -np.inf, rng.normal(size=keys))},
    }
    for dtype, mask in (("float32", "none"), ("bfloat16", "key_mask"), ("float32", "float"), ("bfloat16", "segments")):
        setting = Setting(
            2, requirements.get("num_heads") or 2, 1, 2, keys, *rng.choice([(8, 8), (20, 13)]).tolist(),
            query_position=int(rng.integers(keys)), is_causal=bool(rng.integers(2)) if causal is None else causal,
            window=None if rng.integers(2) else (300, 40), **masks[mask], seed=int(rng.integers(2**32)),
        )  # fmt: skip
        subject = make_subject(CASES[name], setting, dtype)
        check(subject, "native", dtype, return_lse=True, truth=by_formula)

"""Every encoding on the kernels of every instruction set: outputs, lse and every gradient within the budget."""

import numpy as np
import pytest
import torch

from relattn import relative_attention
from relattn.backends.cpu import operator
from tests import seeds
from tests.contract.cases import CASES
from tests.contract.check import by_formula
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import make_subject
from tests.native.passes import check
from tests.native.sets import every_set

pytestmark = pytest.mark.pairs

HALVES = ("bfloat16", "float16")
LONGEST = 130
"""Across a few small blocks; the float64 formula writes every pair's rows out."""

every_case = pytest.mark.parametrize("name", CASES)


@pytest.mark.one_in(6)
@every_set
@every_case
def test_short_sequences_are_the_oracles(name: str, instructions: str, rng: np.random.Generator) -> None:
    """Within one group of queries and one panel of keys, whose rest lies outside of the sequence."""
    for _ in range(3):
        setting = random_setting(rng, **CASES[name].requirements())
        check(make_subject(CASES[name], setting, "float32"), "native", "float32", return_lse=bool(rng.integers(3)))


@pytest.mark.one_in(6)
@every_set
@every_case
def test_sequences_across_blocks(name: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    setting = random_setting(rng, **CASES[name].requirements(), longest=LONGEST)
    check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(8)
@every_set
@every_case
def test_half_precision(name: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    """The inputs alone, beside float32 parameters, or all of them."""
    dtype, parameters = str(rng.choice(HALVES)), rng.choice(("same", "float32"))
    setting = random_setting(rng, **CASES[name].requirements(), longest=LONGEST // 2)
    subject = make_subject(CASES[name], setting, dtype, None if parameters == "same" else parameters)
    check(subject, "native", dtype, truth=by_formula)


@pytest.mark.one_in(8)
@every_set
@every_case
def test_softcap_key_bias_and_sinks(name: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    """In calls of one group and of many, of float32 and of half precision."""
    dtype = str(rng.choice(("float32", *HALVES)))
    for longest in (9, LONGEST):
        setting = random_setting(rng, **CASES[name].requirements(), kind="capped", longest=longest)
        check(make_subject(CASES[name], setting, dtype, "float32"), "native", dtype, truth=by_formula)


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
def test_a_group_that_sees_no_key_of_a_tile(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tile before left in its rows reached the keys: found by a search, RELATTN_SEED=1642362639."""
    monkeypatch.setattr(operator, "BACKWARD_BLOCKS", (12, 48))
    setting = Setting(2, 1, 1, 34, 15, 2, 1, is_causal=True, window=(3, 0), seed=1839742470)
    check(make_subject(CASES["terms_all_error"], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(16)
@every_set
@every_case
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


@every_set
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


@pytest.mark.one_in(12)
@every_set
@every_case
def test_few_queries(name: str, instructions: str, rng: np.random.Generator, monkeypatch) -> None:
    """They meet keys where they lie, a chunk at a time: float32, and bfloat16 of any width, under masks and windows.

    Without gradients; with them, in the same budget, keys are packed.
    """
    ran, run = [], operator._run
    monkeypatch.setattr(operator, "_run", lambda *given, few=False: (ran.append(few), run(*given, few=few)))
    requirements = CASES[name].requirements()
    causal, keys = requirements.get("is_causal"), int(rng.integers(1, 600))
    heads = requirements.get("num_heads") or 2
    masks = {
        "key_mask": {"key_mask": rng.random((2, keys)) < 0.6},
        "segments": {"segment_ids": (rng.integers(0, 2, (2, 2)), rng.integers(0, 2, (2, keys)))},
        "none": {},
        "float": {"attn_mask": np.where(rng.random((2, 1, 2, keys)) < 0.3, -np.inf, rng.normal(size=keys))},
    }
    for dtype, mask in (("float32", "none"), ("bfloat16", "key_mask"), ("float32", "float"), ("bfloat16", "segments")):
        setting = Setting(
            2, heads, -(-2 * heads // operator.QUERIES_OF_A_KEY), 2, keys, *rng.choice([(8, 8), (20, 13)]).tolist(),
            query_position=int(rng.integers(keys)), is_causal=bool(rng.integers(2)) if causal is None else causal,
            window=None if rng.integers(2) else (300, 40), **masks[mask], seed=int(rng.integers(2**32)),
        )  # fmt: skip
        subject = make_subject(CASES[name], setting, dtype)
        check(subject, "native", dtype, return_lse=True, truth=by_formula)
    assert ran.count(True) == 4


@pytest.mark.one_in(4)
@every_set
@pytest.mark.parametrize("backend", ["native", "blocks"])
@pytest.mark.parametrize("name", ["none", "relative_per_head", "shaw+shaw_values", "terms_all"])
def test_dropout(name: str, backend: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    """The factors are those that docs/equation.md lays out, whoever computes: few queries, and many across blocks."""
    requirements = CASES[name].requirements()
    heads, causal = requirements.get("num_heads") or 4, requirements.get("is_causal")
    for queries, keys in ((2, 40), (45, 52)):
        setting = Setting(
            2, heads, heads // 2, queries, keys, 5, 4, query_position=9, dropout_p=float(rng.choice([0.1, 0.6])),
            is_causal=bool(rng.integers(2)) if causal is None else causal, seed=int(rng.integers(2**32)),
        )  # fmt: skip
        check(make_subject(CASES[name], setting, "float32"), backend, "float32", truth=by_formula)


def test_dropped_weights_are_the_same_in_native_and_blocks() -> None:
    """Of one seed, with the identity for values, at lengths that neither takes in one block or tile."""
    query, key = torch.randn(1, 2, 300, 8), torch.randn(1, 2, 700, 8)
    value = torch.eye(700).expand(1, 2, 700, 700)
    found = []
    for backend in ("native", "blocks"):
        seeds.start_torch("dropped weights")
        found.append(relative_attention(query, key, value, dropout_p=0.5, backend=backend))
    assert torch.equal(found[0] == 0, found[1] == 0)
    torch.testing.assert_close(*found)
    assert 0.49 < (found[0] == 0).double().mean() < 0.51

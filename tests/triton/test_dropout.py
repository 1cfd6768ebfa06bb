"""Dropout of the kernels: each pair is kept or dropped as docs/equation.md lays it out, whoever computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from relattn.backends.select import BACKENDS
from relattn.call import Options, checked, request
from relattn.checks.positions import places_of
from relattn.equation.philox import factors_of
from relattn.equation.problem import Part, Problem
from relattn.positions.positions import limits
from tests.contract.cases import CASES
from tests.contract.check import by_formula, check
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.oracle.philox import philox
from tests.test_parts_of_a_call import ENCODINGS
from tests.test_parts_of_a_call import check as check_parts
from tests.triton import INTERPRETED, everywhere

P, SEED = 0.4, 2**62 + 123456789

CALLS: dict[str, dict[str, Any]] = {
    "tiles that nothing fills": {"lengths": (21, 37)},
    "whole tiles": {"lengths": (32, 48)},
    "batch elements and heads": {"lengths": (18, 20), "batch": 3, "heads": (4, 4)},
    "heads that share keys": {"lengths": (20, 18), "batch": 2, "heads": (6, 2)},
    "one query": {"lengths": (1, 70)},
    "few queries": {"lengths": (7, 70), "batch": 2},
    "later keys alone are seen": {"lengths": (20, 60), "window": (5, 0), "query_position": 40},
    "a part": {"lengths": (40, 30), "part": Part(64, 31, 3, 9), "batch": 2},
    "a part whose first query is no multiple of 4": {"lengths": (40, 30), "part": Part(63, 1, 0, 2)},
    "one query of a part": {"lengths": (1, 70), "part": Part(1022, 7, 5, 20)},
    "few queries of a part": {"lengths": (6, 70), "part": Part(5, 0, 0, 2)},
    "pairs beyond 2^31": {"lengths": (18, 20), "part": Part(2**32 - 16, 2**31 - 7, 0, 2)},
}


def problem_of(
    device: str, lengths: tuple[int, int], *, batch: int = 1, heads: tuple[int, int] = (2, 2),
    window: tuple[int, int] | None = None, query_position: int = 0, part: Part | None = None,
    p: float = P, seed: int = SEED,
) -> Problem:  # fmt: skip
    """Scores that are all 0, and the identity for values: the output is the weights of the pairs."""
    queries, keys = lengths
    query = torch.zeros(batch, heads[0], queries, 16, device=device)
    key = torch.zeros(batch, heads[1], keys, 16, device=device)
    value = torch.eye(keys, device=device).expand(batch, heads[1], keys, keys)
    *tensors, of_batch = checked(query, key, value, True)
    places = places_of(query_position, 0, of_batch, lengths, query.device, limits(False, window))
    problem = request(*tensors, of_batch, places, None, Options()).problem
    return problem.replace(dropout_p=p, seed=seed, part=part)


def hold_to_the_factors(problem: Problem) -> None:
    """Equal to the pair, and scaled alike."""
    seen = BACKENDS["dense"].run(problem.replace(dropout_p=0.0))[0]
    found, _ = BACKENDS["triton"].run(problem)
    assert problem.seed is not None
    factors = factors_of(problem, problem.seed)
    assert torch.equal(found != 0, (factors * seen) != 0)
    torch.testing.assert_close(found, factors * seen, rtol=1e-5, atol=0.0)


@everywhere
@pytest.mark.parametrize("name", CALLS)
def test_the_pairs_are_those_of_the_other_backends(name: str, device: str) -> None:
    hold_to_the_factors(problem_of(device, **CALLS[name]))


@everywhere
@pytest.mark.parametrize("lengths", [(20, 18), (3, 18)], ids=["in tiles", "few queries"])
@pytest.mark.parametrize("p", [2.0**-32, 2.0**-60, 0.5, 1.0 - 2.0**-32, 1.0])
def test_limits_at_the_ends(p: float, lengths: tuple[int, int], device: str) -> None:
    """All words are below the limit, none, or those below 2^31, the first that a signed number does not hold."""
    for seed in (0, 2**63 - 1):
        hold_to_the_factors(problem_of(device, lengths, p=p, seed=seed))


@everywhere
@pytest.mark.parametrize("lengths", [(20, 18), (3, 18)], ids=["in tiles", "few queries"])
def test_a_word_at_the_limit_is_dropped(lengths: tuple[int, int], device: str) -> None:
    """That of the first pair."""
    word = philox((0, 0, 0, 0), (SEED % 2**32, SEED // 2**32))[0]
    hold_to_the_factors(problem_of(device, lengths, p=1.0 - word / 2**32))


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize("ordered", [False, True], ids=["atomic", "in order"])
@pytest.mark.parametrize("name", ["none", "relative_per_head", "shaw+shaw_values", "terms_all"])
def test_every_gradient(
    name: str, ordered: bool, device: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plain formula, from the seed that torch's generator draws: few queries, and many across tiles."""
    from relattn.backends.triton.kernels import backward

    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: ordered)
    needs = CASES[name].requirements()
    heads, causal = needs.get("num_heads") or 4, needs.get("is_causal")
    for queries, keys in ((3, 40), (21, 19)):
        setting = Setting(
            2, heads, heads // 2, queries, keys, 5, 4, query_position=9, is_causal=causal is not False,
            dropout_p=P, seed=int(rng.integers(2**32)),
        )  # fmt: skip
        check(make_subject(CASES[name], setting, "float32"), "triton", "float32", truth=by_formula, device=device)


@pytest.mark.triton
@pytest.mark.parametrize("name", ENCODINGS)
def test_parts_drop_the_pairs_of_the_whole(name: str) -> None:
    check_parts("triton", name, dropout_p=P)

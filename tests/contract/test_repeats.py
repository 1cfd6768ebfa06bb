"""Same inputs, same machine: bit-equal outputs and gradients on every run.

Read off the graph for all: an unordered sum may happen to come out equal, above all on a busy machine, but its node is
always there. And run with two threads, on sizes that PyTorch splits between them (from 32768 float32 numbers).
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch

from tests.contract.cases import BACKEND_ANSWERS, CASES, expected_answer, runnable_pairs
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import Subject, make_subject

pytestmark = pytest.mark.pairs

pytest_plugins = ["tests.contract.fresh"]

QUERIES, KEYS = 80, 96
UNORDERED = {"IndexBackward0", "IndexSelectBackward0", "GatherBackward0", "TakeBackward0", "IndexPutBackward0"}


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def large(name: str, width: int, explicit: bool, rng: np.random.Generator) -> Setting:
    """Many pairs for each row of a table, and queries that share keys."""
    needs = CASES[name].requirements()
    positions = {}
    if explicit:
        positions = {"query_position": rng.integers(0, KEYS, QUERIES), "key_position": rng.integers(0, KEYS, (1, KEYS))}
    return Setting(
        batch=1,
        num_heads=needs.get("num_heads") or 4,
        num_kv_heads=1,
        query_length=QUERIES,
        key_length=KEYS,
        head_dim=width,
        value_dim=width,
        is_causal=bool(needs.get("is_causal")),
        seed=int(rng.integers(2**32)),
        **positions,
    )


def run(subject: Subject, backend: str, return_lse: bool) -> list[torch.Tensor]:
    """The answers of one run."""
    result = subject.run(backend, return_lse)
    return list(result) if return_lse else [result]


def outcome(subject: Subject, answers: list[torch.Tensor]) -> list[torch.Tensor]:
    """The answers and every gradient."""
    weights = [torch.ones_like(answer).cumsum(-1) for answer in answers]
    arrays = list(subject.arrays.values())
    return [*answers, *torch.autograd.grad(answers, arrays, weights, allow_unused=True, materialize_grads=True)]


def nodes_of(answers: Iterable[torch.Tensor]) -> set[str]:
    """The name of every node in the answers' graph."""
    names, waiting = set(), {answer.grad_fn for answer in answers}
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.add(node.name())
            waiting |= {following for following, _ in node.next_functions}
    return names


@pytest.mark.parametrize(("name", "backend"), runnable_pairs(), indirect=["backend"])
def test_no_gradient_is_an_unordered_sum(name: str, backend: str, rng: np.random.Generator) -> None:
    kinds = ("any", "bare") if backend not in BACKEND_ANSWERS else ("bare",)
    for kind in kinds:
        setting = random_setting(rng, **CASES[name].requirements(), kind=kind)
        return_lse = expected_answer(backend, CASES[name], setting, True) == "runs"
        unordered = UNORDERED & nodes_of(run(make_subject(CASES[name], setting, "float32"), backend, return_lse))
        assert not unordered, f"gradients are not deterministic in {unordered}"


FEW = {"music_transformer", "shaw", "txl", "t5", "rope", "terms_all"}
"""Tables of every kind."""


def marks(name: str, backend: str) -> list[pytest.MarkDecorator]:
    return [] if name in FEW and backend != "reference" else [pytest.mark.slow]


@pytest.mark.one_in(6)
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    ("name", "backend"),
    [pytest.param(name, backend, marks=marks(name, backend)) for name, backend in runnable_pairs()],
    indirect=["backend"],
)
def test_runs_are_bit_equal(name: str, backend: str, explicit: bool, rng: np.random.Generator) -> None:
    width = 4 if backend == "reference" else 64  # it writes every pair's row out
    explicit = explicit and backend not in BACKEND_ANSWERS
    subject = make_subject(CASES[name], large(name, width, explicit, rng), "float32")
    return_lse = expected_answer(backend, CASES[name], subject.setting, True) == "runs"
    first, second = (outcome(subject, run(subject, backend, return_lse)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

"""The contract under inductor: one graph, and outputs, lse and every gradient within the budget of an eager call."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from relattn import relative_attention
from tests.contract import subject
from tests.contract.cases import CASES, DIFFERENT
from tests.contract.check import check
from tests.contract.settings import random_setting
from tests.contract.subject import make_subject

pytestmark = [pytest.mark.graphs, pytest.mark.slow]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a subject runs is compiled by inductor."""
    torch._dynamo.reset()
    monkeypatch.setattr(subject, "relative_attention", torch.compile(relative_attention, fullgraph=True))
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", DIFFERENT)
def test_answers_and_gradients(name: str, rng: np.random.Generator) -> None:
    """Of starts, also as tensors: some encodings read explicit positions, which ends a graph."""
    backend = str(rng.choice(["dense", "blocks", "native"]))
    kind = str(rng.choice(["diagonal", "capped diagonal"]))
    setting = random_setting(rng, **CASES[name].requirements(), kind=kind)
    check(make_subject(CASES[name], setting, "float32"), backend, "float32")

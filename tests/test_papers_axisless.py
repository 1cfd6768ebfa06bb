"""The papers that have a term without an axis, key_bias, softcap or sinks: each one's formula on every backend."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import relative_attention
from relattn.positions.offsets import alibi_slopes
from tests.contract.blocks import TESTED_BACKENDS
from tests.contract.check import numpy_of
from tests.oracle import (
    Answer,
    alibi_per_key,
    assert_within_budget,
    complex_step_gradients,
    forgetting,
    gemma2,
    max_error,
    sinks,
)

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, KV_HEADS, LENGTH, WIDTH = 2, 4, 2, 9, 6
CAP, WINDOW, SCALE = 1.5, 4, 0.3
KEPT = np.arange(LENGTH) >= np.array([[0], [3]])
"""The second sequence is padded on the left."""

INPUTS = {
    "query": (B, HEADS, LENGTH, WIDTH), "key": (B, KV_HEADS, LENGTH, WIDTH), "value": (B, KV_HEADS, LENGTH, WIDTH)
}  # fmt: skip


class Paper(NamedTuple):
    """A paper's formula, and the same by relattn.

    parameters: their shapes by name. oracle: of the inputs and parameters. keywords: of relative_attention, made of the
    parameters. plain: S' of q . k, for the plain formula, whose own rounding sets the budget; and the logits beside it.
    """

    parameters: dict[str, tuple[int, ...]]
    oracle: Callable[..., Answer]
    keywords: Callable[[dict[str, Tensor]], dict[str, Any]]
    plain: Callable[[Tensor, dict[str, Tensor]], Tensor]


def places(dtype: torch.dtype) -> Tensor:
    """m_h p_j [B, H, L]."""
    kept = torch.from_numpy(KEPT)
    place = (kept.cumsum(-1) - 1) * kept
    return (torch.from_numpy(alibi_slopes(HEADS))[:, None] * place[:, None, :]).to(dtype)


def prefix_sums(logits: Tensor) -> Tensor:
    return F.logsigmoid(logits).cumsum(-1)


def per_key(scale: float) -> dict[str, Any]:
    """BLOOM's and Falcon's."""
    causal_and_kept = {"is_causal": True, "key_mask": torch.from_numpy(KEPT)}
    return {
        "parameters": {},
        "oracle": lambda inputs, p: alibi_per_key.attention(inputs, p, key_mask=KEPT, shares_the_scale=scale != 1.0),
        "keywords": lambda p: {"key_bias": scale * places(p["query"].dtype), **causal_and_kept},
        "plain": lambda products, p: products * WIDTH**-0.5 + scale * places(products.dtype).unsqueeze(-2),
    }


def of_sinks(*shape: int) -> Paper:
    return Paper(
        {"sinks": shape}, sinks.attention, lambda p: {"sinks": p["sinks"], "is_causal": True},
        lambda products, p: products * WIDTH**-0.5,
    )  # fmt: skip


PAPERS: dict[str, Paper] = {
    "Forgetting Transformer": Paper(
        {"logits": (B, HEADS, LENGTH)}, forgetting.attention,
        lambda p: {"key_bias": -prefix_sums(p["logits"]), "is_causal": True},
        lambda products, p: products * WIDTH**-0.5
        + (prefix_sums(p["logits"]).unsqueeze(-1) - prefix_sums(p["logits"]).unsqueeze(-2)),
    ),
    "BLOOM": Paper(**per_key(1.0)),
    "Falcon": Paper(**per_key(WIDTH**-0.5)),
    "Gemma 2": Paper(
        {}, lambda inputs, p: gemma2.attention(inputs, p, soft_cap=CAP, scale=SCALE, window=WINDOW),
        lambda p: {"softcap": CAP, "scale": SCALE, "is_causal": True, "window": (WINDOW - 1, None)},
        lambda products, p: CAP * torch.tanh(products * SCALE / CAP),
    ),
    "gpt-oss": of_sinks(HEADS),
    "Inkling 2": of_sinks(B, HEADS, LENGTH),
}  # fmt: skip


def hidden(name: str) -> Tensor:
    """True for the pairs that a paper's causality, window or padding hides."""
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    beyond = (distance < 0) | (distance >= WINDOW if name == "Gemma 2" else distance < 0)
    return beyond | ~torch.from_numpy(KEPT)[:, None, None, :] if name in ("BLOOM", "Falcon") else beyond


def plain(name: str, p: dict[str, Tensor]) -> Tensor:
    """The formula as one would write it."""
    key, value = (p[one].repeat_interleave(HEADS // KV_HEADS, dim=1) for one in ("key", "value"))
    unseen = hidden(name)
    scores = PAPERS[name].plain(p["query"] @ key.mT, p).masked_fill(unseen & ~unseen.all(-1, keepdim=True), -torch.inf)
    if "sinks" in p:
        logits = p["sinks"] if p["sinks"].dim() == 3 else p["sinks"][:, None].expand(B, -1, LENGTH)
        scores = torch.cat([scores, logits.unsqueeze(-1)], dim=-1)
    weights = scores.softmax(-1)[..., :LENGTH].masked_fill(unseen.all(-1, keepdim=True), 0.0)
    return weights @ value


RUNS = [(name, backend, "float64") for name in PAPERS for backend in TESTED_BACKENDS if backend != "sdpa"]
RUNS += [(name, "native", "float32") for name in PAPERS]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "backend", "dtype"), RUNS, indirect=["backend"])
def test_papers(name: str, backend: str, dtype: str, rng: np.random.Generator) -> None:
    """Outputs, and gradients by inputs and parameters."""
    paper, torch_dtype = PAPERS[name], getattr(torch, dtype)
    drawn = {
        one: torch.from_numpy(rng.normal(size=shape)).to(torch_dtype)
        for one, shape in {**INPUTS, **paper.parameters}.items()
    }
    cotangent = torch.from_numpy(rng.normal(size=INPUTS["query"])).to(torch_dtype)

    def answer(numbers: dict[str, np.ndarray]) -> Answer:
        return paper.oracle([numbers[one] for one in INPUTS], {one: numbers[one] for one in paper.parameters})

    def outcome(function: Callable[[dict[str, Tensor]], Tensor]) -> dict[str, np.ndarray]:
        leaves = {one: tensor.clone().requires_grad_() for one, tensor in drawn.items()}
        output = function(leaves)
        found = torch.autograd.grad(output, list(leaves.values()), cotangent)
        return {
            one: numpy_of(tensor) for one, tensor in {"output": output, **dict(zip(leaves, found, strict=True))}.items()
        }

    def ours(p: dict[str, Tensor]) -> Tensor:
        inputs = [p[one] for one in INPUTS]
        return relative_attention(*inputs, enable_gqa=True, backend=backend, **paper.keywords(p))

    numbers = {one: numpy_of(tensor) for one, tensor in drawn.items()}
    truth = {"output": answer(numbers).output, **complex_step_gradients(answer, numbers, numpy_of(cotangent))}
    formula, found = outcome(lambda p: plain(name, p)), outcome(ours)
    terms = 4 * WIDTH + 4 * LENGTH + HEADS * B * LENGTH**2
    for one, exact in truth.items():
        size = max(np.abs(exact).max(), np.abs(truth["value"]).max())  # gates' gradients cancel along a row
        error = max_error(formula[one], exact)
        assert_within_budget(found[one], exact, error, terms, dtype, f"{name}: {one}", magnitude=size)

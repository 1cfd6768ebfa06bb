"""What softcap, key_bias and sinks mean beside masks, for lse, for weights, and in long sequences.

The contract suite runs them beside every encoding, `test_papers_axisless` the papers' own formulas.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import AlibiBias, ShawEmbedding, attention_and_lse, attention_weights, explain, relative_attention
from tests.contract.blocks import TESTED_BACKENDS
from tests.contract.calls import assert_equal, gradients
from tests.contract.check import numpy_of
from tests.oracle import assert_within_budget, max_error

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, WIDTH, CAP = 2, 4, 6, 1.5

every_backend = pytest.mark.parametrize("backend", [one for one in TESTED_BACKENDS if one != "sdpa"], indirect=True)


def drawn(queries: int = 5, keys: int = 7, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Inputs, a key bias and sinks per row."""
    shapes = {"query": (B, HEADS, queries, WIDTH), "key": (B, HEADS, keys, WIDTH), "value": (B, HEADS, keys, WIDTH)}
    shapes |= {"key_bias": (B, HEADS, keys), "sinks": (B, HEADS, queries)}
    return {name: torch.randn(shape, dtype=dtype, requires_grad=True) for name, shape in shapes.items()}


def without(call: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in call.items() if name not in names}


@every_backend
def test_a_key_bias_is_a_float_mask_of_one_row(backend: str) -> None:
    """And adds to another one, with the same gradient."""
    call, mask = drawn(), torch.randn(1, HEADS, 5, 7, dtype=torch.float64, requires_grad=True)
    ours = attention_and_lse(**call, attn_mask=mask, backend=backend)
    summed = mask + call["key_bias"].unsqueeze(-2)
    theirs = attention_and_lse(**without(call, "key_bias"), attn_mask=summed, backend=backend)
    leaves = [*call.values(), mask]
    assert_equal(ours, theirs)
    assert_equal(gradients(ours, leaves), gradients(theirs, leaves))


ENDS = {torch.float32: (1e-45, 1e-40, 3e38), torch.float64: (6e-309, 1e-300, 1.7e308)}
"""Caps beside which a product or a quotient of the formula leaves the dtype."""


WHO_CAPS = [(backend, dtype) for backend in ("reference", "dense", "blocks") for dtype in ENDS]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("backend", "dtype"), [*WHO_CAPS, ("native", torch.float32)], ids=str)
@pytest.mark.parametrize("zeros", [False, True], ids=["scores", "scores of 0"])
def test_caps_at_both_ends(backend: str, dtype: torch.dtype, zeros: bool) -> None:
    """A high cap changes nothing. Under a low one all scores are 0, with gradient 0; but a 0 keeps its slope of 1."""
    call = without(drawn(dtype=dtype), "key_bias", "sinks")
    call["query"] = (call["query"] * (not zeros)).detach().requires_grad_()
    leaves = list(call.values())

    def found(query: Tensor, softcap: float | None) -> tuple[Tensor, ...]:
        answers = attention_and_lse(**{**call, "query": query}, softcap=softcap, backend=backend)
        return *answers, *gradients(answers, leaves)

    flat = found(0.0 * call["query"].detach(), None) if not zeros else None
    for cap in ENDS[dtype]:
        expected = found(call["query"], None) if cap > 1.0 or flat is None else flat
        for one, other in zip(found(call["query"], cap), expected, strict=True):
            torch.testing.assert_close(one, other)


@every_backend
def test_what_every_key_has_changes_lse_alone(backend: str) -> None:
    call = without(drawn(), "sinks")
    output, lse = attention_and_lse(**call, backend=backend)
    more = {**call, "key_bias": call["key_bias"] + 3.0}
    assert_equal(attention_and_lse(**more, backend=backend), (output, lse + 3.0))


@pytest.mark.parametrize("backend", ["reference", "dense", "blocks", "native"])
def test_values_have_no_gradient_of_lse_alone(backend: str) -> None:
    """Zeros from every backend, not an error: for values of inf too, and for rows of relative values."""
    call, encoding = without(drawn(dtype=torch.float32), "key_bias"), ShawEmbedding(WIDTH, 2)
    with torch.no_grad():
        call["value"][:, :, 3] = torch.inf
    _, lse = attention_and_lse(**call, encoding=encoding, backend=backend)
    assert encoding.relative_values is not None
    by_value, by_rows = torch.autograd.grad(lse.sum(), (call["value"], encoding.relative_values))
    assert not by_value.any() and not by_rows.any()


@every_backend
def test_lse_is_that_of_the_keys_alone(backend: str) -> None:
    """So that pieces are merged first, and the sink comes once."""
    call, cap = drawn(), {"softcap": CAP, "encoding": AlibiBias(HEADS).double(), "backend": backend}
    whole, lse = attention_and_lse(**call, **cap)
    plain, same = attention_and_lse(**without(call, "sinks"), **cap)
    assert_equal(lse, same)
    assert_equal(whole, plain * torch.sigmoid(lse - call["sinks"]).unsqueeze(-1))
    pieces = []
    for keys in (slice(0, 3), slice(3, 7)):
        part = {name: call[name][:, :, keys] for name in ("key", "value", "key_bias")}
        pieces.append(attention_and_lse(call["query"], **part, **cap, key_position=keys.start))
    merged = torch.logsumexp(torch.stack([piece[1] for piece in pieces]), dim=0)
    output = sum(piece[0] * (piece[1] - merged).exp().unsqueeze(-1) for piece in pieces)
    assert_equal(output * torch.sigmoid(merged - call["sinks"]).unsqueeze(-1), whole)


@every_backend
def test_the_gradient_by_a_sink_keeps_its_digits(backend: str) -> None:
    """-p (1 - p) for one key of value 1 and score s, p = sigmoid(-s); s is rounded a few times before exp.

    A sink that takes little leaves a share that rounds to 1.
    """
    scores = torch.linspace(-80.0, 80.0, 33)
    one, key = torch.ones(1, 33, 1, 1), scores.view(1, 33, 1, 1)
    sinks = torch.zeros(33, requires_grad=True)
    relative_attention(one, key, one, sinks=sinks, scale=1.0, backend=backend).sum().backward()
    exact = -torch.sigmoid(-scores.double()) * torch.sigmoid(scores.double())
    eps = torch.finfo(torch.float32).eps
    torch.testing.assert_close(sinks.grad.double(), exact, rtol=4 * (1 + 80) * eps, atol=0.0)


@every_backend
@pytest.mark.parametrize("attend", [relative_attention, attention_and_lse])
def test_a_sink_of_minus_infinity_is_none(backend: str, attend: Callable[..., Any]) -> None:
    call = drawn()
    plain = without(call, "sinks")
    nothing = torch.full((HEADS,), -torch.inf, dtype=torch.float64, requires_grad=True)
    kept = torch.tensor([[True] * 7, [False] * 7])  # the second element sees no key
    ours, theirs = (attend(**one, key_mask=kept, backend=backend) for one in ({**plain, "sinks": nothing}, plain))
    ours, theirs = (one if isinstance(one, tuple) else (one,) for one in (ours, theirs))
    assert_equal(ours, theirs)
    *found, by_sink = gradients(ours, [*plain.values(), nothing])
    assert_equal(tuple(found), gradients(theirs, list(plain.values())))
    assert torch.equal(by_sink, torch.zeros_like(by_sink))


@every_backend
def test_a_row_without_keys(backend: str) -> None:
    """Output 0, lse -inf, and no gradient, by the sink neither."""
    call = drawn()
    output, lse = attention_and_lse(**call, softcap=CAP, is_causal=True, query_position=-3, backend=backend)
    assert torch.equal(output[:, :, :3], torch.zeros_like(output[:, :, :3]))
    assert (lse[:, :, :3] == -torch.inf).all() and lse[:, :, 3:].isfinite().all()
    found = dict(zip(call, torch.autograd.grad(output.sum() + lse[:, :, 3:].sum(), list(call.values())), strict=True))
    assert all(gradient.isfinite().all() for gradient in found.values())
    for name in ("query", "sinks"):
        assert not found[name][:, :, :3].any() and found[name][:, :, 3:].all()


@every_backend
def test_a_mask_of_the_lowest_number_swallows_them(backend: str) -> None:
    hold_what_a_mask_swallows(backend, torch.float64)


def hold_what_a_mask_swallows(backend: str, dtype: torch.dtype, **tolerance: float) -> None:
    """As Hugging Face's masks do: rows that hide all keys so are the mean of the values, whatever the keys add."""
    call = without(drawn(dtype=dtype), "sinks")
    lowest = torch.full((5, 7), torch.finfo(dtype).min, dtype=dtype)
    lowest[0, 2] = 0.0
    output = relative_attention(**call, attn_mask=lowest, backend=backend)
    assert_equal(output[:, :, 0], call["value"][:, :, 2], **tolerance)
    assert_equal(output[:, :, 1:], call["value"].mean(2, keepdim=True).expand_as(output[:, :, 1:]), **tolerance)


@every_backend
def test_encodings_are_capped_and_what_is_added_is_not(backend: str) -> None:
    """No score exceeds the cap; the key bias and a float mask do."""
    call, bias = drawn(), AlibiBias(HEADS, slopes=[100.0] * HEADS).double()
    plain = without(call, "sinks", "key_bias")
    lse = attention_and_lse(**plain, softcap=CAP, encoding=bias, backend=backend)[1]
    assert (lse.abs() <= CAP + np.log(7)).all()
    for added in ({"key_bias": torch.full((1, 1, 7), 50.0).double()}, {"attn_mask": torch.full((5, 7), 50.0).double()}):
        found = attention_and_lse(**plain, **added, softcap=CAP, encoding=bias, backend=backend)[1]
        assert_equal(found, lse + 50.0)


@every_backend
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)], ids=str)
def test_empty_batches_and_lengths(backend: str, sizes: tuple[int, int, int]) -> None:
    batch, queries, keys = sizes
    call = {name: tensor[:batch] for name, tensor in drawn(queries, keys).items()}
    for limits in ({}, {"is_causal": True}, {"window": (2, 1)}):
        output, lse = attention_and_lse(**call, softcap=CAP, **limits, backend=backend)
        assert output.shape == (batch, HEADS, queries, WIDTH) and lse.shape == (batch, HEADS, queries)
        assert all(gradient.isfinite().all() for gradient in gradients((output,), list(call.values())))
        if keys == 0:
            assert not output.any() and (lse == -torch.inf).all()


def test_weights_beside_a_sink() -> None:
    call = drawn()
    weights = attention_weights(**call, softcap=CAP, is_causal=True)
    assert_equal(weights @ call["value"], relative_attention(**call, softcap=CAP, is_causal=True))
    lse = attention_and_lse(**call, softcap=CAP, is_causal=True)[1]
    assert_equal(weights.sum(-1), torch.sigmoid(lse - call["sinks"]))
    assert (weights.sum(-1) < 1.0).all()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("asked", [{"key_bias": torch.zeros(1, 1, 300)}, {"softcap": 30.0}, {"sinks": torch.zeros(8)}])
@pytest.mark.parametrize("queries", [1, 300])
def test_auto_takes_a_backend_that_has_them(asked: dict[str, Any], queries: int) -> None:
    query, key = torch.randn(1, 8, queries, 16), torch.randn(1, 8, 300, 16)
    plain, explanation = explain(query, key, key), explain(query, key, key, **asked)
    assert plain.chosen == "sdpa"
    assert explanation.chosen in ("native", "dense", "blocks")
    exact = relative_attention(query.double(), key.double(), key.double(), backend="reference", **asked)
    torch.testing.assert_close(relative_attention(query, key, key, **asked), exact.float())


def test_autocast_narrows_neither(rng: np.random.Generator) -> None:
    """The inputs alone: key bias and sinks stay float32, and so do their gradients."""
    call = drawn(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = relative_attention(**call, softcap=CAP)
    half = {name: x.bfloat16() if name in ("query", "key", "value") else x for name, x in call.items()}
    by_hand = relative_attention(**half, softcap=CAP)
    assert cast.dtype == torch.bfloat16 and torch.equal(cast, by_hand)
    for name in ("key_bias", "sinks"):
        ours, theirs = (torch.autograd.grad(x.sum(), call[name], retain_graph=True)[0] for x in (cast, by_hand))
        assert ours.dtype == torch.float32 and torch.equal(ours, theirs) and ours.any()


# --- sums that grow with the length

LONG = 1500


def forgetting_by_differences(call: dict[str, Tensor], sums: Tensor) -> tuple[Tensor, ...]:
    """The plain formula in float32, whose differences of prefix sums are exact but for their last rounding."""
    scores = call["query"] @ call["key"].mT * WIDTH**-0.5
    scores = scores + (sums.double().unsqueeze(-2) - sums.double().unsqueeze(-1)).to(scores.dtype)
    hidden = torch.ones(LONG, LONG, dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ call["value"],)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("layout", ["contiguous", "explicit", "few queries", "few explicit queries"])
@pytest.mark.parametrize("backend", ["dense", "blocks", "native"])
def test_digits_of_growing_sums_are_kept(backend: str, layout: str, rng: np.random.Generator) -> None:
    """a_j = -F_j reaches thousands, and S is of size one: added up in float32 it would lose three digits."""
    shapes = {"query": (1, 2, LONG, WIDTH), "key": (1, 2, LONG, WIDTH), "value": (1, 2, LONG, WIDTH)}
    call = {name: torch.from_numpy(rng.normal(size=shape)).float().requires_grad_() for name, shape in shapes.items()}
    logits = torch.from_numpy(rng.normal(size=(1, 2, LONG)) * 2 - 1).float()
    sums = (-F.logsigmoid(logits).cumsum(-1)).requires_grad_()
    assert sums.max() > 1000.0
    rows = slice(LONG - 3, LONG) if layout.startswith("few") else slice(0, LONG)
    leaves = [*call.values(), sums]
    wide = {name: x.detach().double().requires_grad_() for name, x in {**call, "sums": sums}.items()}
    exact = forgetting_by_differences(without(wide, "sums"), wide["sums"])[0][:, :, rows]
    formula = forgetting_by_differences(call, sums)[0][:, :, rows]
    positions = torch.arange(LONG) * 2
    where = {"query_position": rows.start}
    if layout.endswith(("explicit", "explicit queries")):
        where = {"query_position": positions[rows], "key_position": positions}
    more = {"is_causal": True, "backend": backend, **where}
    inputs = [call["query"][:, :, rows], call["key"], call["value"]]
    ours = relative_attention(*inputs, key_bias=sums, **more)
    with torch.no_grad():
        alone = numpy_of(relative_attention(*inputs, key_bias=sums, **more))
    naive = relative_attention(*inputs, sums.unsqueeze(-2), **more)
    weights = torch.from_numpy(rng.normal(size=exact.shape))

    def found(output: Tensor, by: list[Tensor]) -> dict[str, np.ndarray]:
        each = torch.autograd.grad(output, by, weights.to(output.dtype))
        return {name: numpy_of(x) for name, x in zip(("output", *wide), (output, *each), strict=True)}

    truth, plain, answer, lost = (
        found(exact, list(wide.values())), found(formula, leaves), found(ours, leaves), found(naive, leaves)
    )  # fmt: skip
    for name, right in truth.items():
        error = max_error(plain[name], right)
        assert_within_budget(answer[name], right, error, WIDTH + LONG, "float32", name)
        if name == "output":
            assert_within_budget(alone, right, error, WIDTH + LONG, "float32", "output without gradients")
    assert max_error(lost["output"], truth["output"]) > 10 * max_error(answer["output"], truth["output"])

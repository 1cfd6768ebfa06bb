"""Calls whose inputs are bfloat16, on kernels that multiply them two by two and on those that widen them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import KeyQueryEmbedding, RelativeEmbedding, ShawEmbedding, attention_and_lse, relative_attention
from relattn.backends.cpu import operator
from tests.contract.cases import CASES
from tests.contract.check import by_formula
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.native.passes import check
from tests.native.sets import RUNNABLE, every_set, of
from tests.native.test_native import answers, assert_every_number_of_threads_gives_the_same_bits, drawn

pytestmark = pytest.mark.pairs

PAIRS = "avx512bf16"
"""The set that multiplies them two by two."""
ENCODINGS = {
    "none": lambda: None,
    "shared": lambda: RelativeEmbedding(32, 400, causal=True),
    "by head": lambda: ShawEmbedding(32, 5, num_heads=4),
    "relative queries": lambda: KeyQueryEmbedding(32, 400),
}


@pytest.mark.one_in(4)
@every_set
@pytest.mark.parametrize(
    "widths", [(1, 1), (16, 16), (32, 24), (40, 48), (80, 65), (64, 128), (128, 64), (256, 300)], ids=str
)
def test_widths(widths: tuple[int, int], instructions: str, rng: np.random.Generator) -> None:
    """Multiples of a vector of pairs and between them; the relative query has a width of its own."""
    setting = Setting(1, 2, 1, 19, 23, *widths, is_causal=True, key_position=-3, seed=int(rng.integers(2**32)))
    for name in ("relative", "terms_all"):
        check(make_subject(CASES[name], setting, "bfloat16"), "native", "bfloat16", truth=by_formula)


@pytest.mark.one_in(6)
@every_set
@pytest.mark.parametrize("parameters", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["relative", "relative_per_head", "shaw_asymmetric", "terms_all", "txl"])
def test_sequences_across_blocks(
    name: str, parameters: str, instructions: str, rng: np.random.Generator, small_blocks
) -> None:
    """Odd lengths, windows that begin and end between the two of a pair, and tables that are not bfloat16."""
    requirements = CASES[name].requirements()
    causal = requirements.get("is_causal")
    setting = Setting(
        2, requirements.get("num_heads") or 4, 2, 91, 77, 40, 32, query_position=int(rng.integers(3)),
        is_causal=bool(rng.integers(2)) if causal is None else causal,
        window=None if rng.integers(2) else (int(rng.integers(70)), int(rng.integers(9))),
        seed=int(rng.integers(2**32)),
    )  # fmt: skip
    subject = make_subject(CASES[name], setting, "bfloat16", None if parameters == "bfloat16" else parameters)
    check(subject, "native", "bfloat16", truth=by_formula)


@every_set
@pytest.mark.parametrize("name", ["none", "shaw_asymmetric", "terms_all"])
def test_caps_key_biases_and_sinks(name: str, instructions: str, rng: np.random.Generator) -> None:
    """With lengths at which a gradient sums many products, within the budget."""
    setting = Setting(
        1, 2, 1, 64, 64, 32, 32, softcap=8.0, key_bias=(1, 2), sinks="per row", seed=int(rng.integers(2**32))
    )
    check(make_subject(CASES[name], setting, "bfloat16"), "native", "bfloat16", truth=by_formula)


@every_set
def test_sinks_cost_gradients_one_rounding(instructions: str) -> None:
    """A sink of -40 takes nothing. One of 0 makes dO a float32, which is rounded: a third rounding to bfloat16, beside
    those of a weight or dS and of the gradient, so that the mean square of all grows by 3 / 2 at most.
    """
    query = 4.0 * drawn(2, 4, 64, 64)
    key, value, gradient = (drawn(2, 4, 64, 64) for _ in range(3))
    given = [tensor.bfloat16() for tensor in (query, key, value, gradient)]

    def error(sink: float) -> Tensor:
        def gradients(dtype: torch.dtype, backend: str) -> list[Tensor]:
            *inputs, by_output = (tensor.to(dtype).requires_grad_() for tensor in given)
            sinks = torch.full((4,), sink, dtype=dtype)
            output = relative_attention(*inputs, sinks=sinks, backend=backend)
            return [one.double() for one in torch.autograd.grad(output, inputs, by_output)]

        exact, found = gradients(torch.float64, "dense"), gradients(torch.bfloat16, "native")
        return torch.stack([(one - other).square().mean() for one, other in zip(found, exact, strict=True)])

    assert (error(0.0) <= 1.5 * error(-40.0)).all()


@every_set
def test_a_group_that_sees_no_key_of_a_tile(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries see their own key alone: the last group of 12 in the fourth block of keys sees none of it.

    The second left numbers in its rows. Eight heads over the batch are eight units, each of which meets all blocks.
    """
    monkeypatch.setattr(operator, "BACKWARD_BLOCKS", (48, 32))
    setting = Setting(4, 2, 2, 144, 144, 16, 16, window=(0, 0), seed=20)
    check(make_subject(CASES["relative"], setting, "bfloat16"), "native", "bfloat16", truth=by_formula)


@pytest.mark.one_in(4)
@every_set
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_number_of_threads_gives_the_same_bits(name: str, instructions: str) -> None:
    encoding = ENCODINGS[name]()
    if encoding is not None:
        encoding = encoding.bfloat16()
    inputs = [drawn(3, 4, 300, 32).bfloat16().requires_grad_() for _ in range(3)]
    assert_every_number_of_threads_gives_the_same_bits(lambda: answers(encoding, inputs, is_causal=True))


def integers(*shape: int) -> Tensor:
    """Small ones, whose products and sums no float rounds."""
    return torch.randint(-3, 4, shape).float()


@every_set
@pytest.mark.parametrize("shaw", [False, True], ids=["relative", "shaw"])
def test_scores_are_those_of_float32(shaw: bool, instructions: str) -> None:
    """Where no product or sum is rounded lse is the same bits, whatever multiplies. Only weights are rounded after it.

    A weight moves by up to 2^-8 of itself, its bfloat16's half a unit, and so does the output by 2^-8 sum_j P_j |v_j|;
    2^-8 of the output more is its own rounding, and float32 sums take less than the 1 % on top.
    """
    query, key, value = (integers(2, 4, length, 32) for length in (75, 91, 91))
    encoding = ShawEmbedding(32, 6) if shaw else RelativeEmbedding(32, 91)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(integers(*parameter.shape))

    def found(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        given: Any = [tensor.to(dtype) for tensor in (query, key, value)]
        with torch.no_grad():
            return attention_and_lse(*given, encoding=encoding.to(dtype), scale=0.0625, backend="native")

    (output, lse), (narrow, narrow_lse) = found(torch.float32), found(torch.bfloat16)
    assert torch.equal(lse, narrow_lse)
    most = value.abs().max() + (3.0 if shaw else 0.0)  # of |v_j + RV|
    assert (output - narrow.float()).abs().max() <= 1.01 * 2.0**-7 * most


@pytest.mark.skipif(PAIRS not in RUNNABLE, reason="this processor has no products of pairs of bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pairs_change_bits_of_bfloat16_alone(dtype: torch.dtype, monkeypatch) -> None:
    """A call in float32 gives what the same registers give without pairs; one in bfloat16 is multiplied otherwise."""
    encoding = RelativeEmbedding(32, 200).to(dtype)
    inputs = [drawn(1, 4, 200, 32).to(dtype).requires_grad_() for _ in range(3)]

    def by(name: str) -> list[Tensor]:
        kernels = of(name)
        monkeypatch.setattr(operator, "kernels", lambda: kernels)
        return answers(encoding, inputs)

    same = [torch.equal(one, other) for one, other in zip(by(PAIRS), by("avx512"), strict=True)]
    assert all(same) if dtype == torch.float32 else not any(same)

"""The comparison with peers tells small differences apart, and forgives a peer's own roundings."""

import pytest
import torch
from torch import Tensor

from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

TERMS = longest_sum(2, 5, 7, 0, 4)


def arrays() -> dict[str, Tensor]:
    return {"q": torch.randn(2, 5, 4), "k": torch.randn(2, 7, 4), "bias": torch.randn(4)}


def attention(a: dict[str, Tensor], *, times: float = 1.0) -> Tensor:
    return torch.softmax(a["q"] @ (a["k"] + a["bias"]).mT * times, -1) @ a["k"]


def in_float32(a: dict[str, Tensor]) -> Tensor:
    """The softmax of many models, float32 whatever comes in."""
    return torch.softmax(a["q"] @ (a["k"] + a["bias"]).mT, -1, dtype=torch.float32).type_as(a["q"]) @ a["k"]


def test_a_peer_with_a_float32_softmax_is_held_to_float64(rng) -> None:
    assert_same_numbers(attention, in_float32, arrays(), TERMS, cancels={"bias": "k"})


def test_an_answer_in_float32_is_none_in_float64(rng) -> None:
    with pytest.raises(AssertionError, match=r"\(float64\).*exceeds the budget"):
        assert_same_numbers(in_float32, attention, arrays(), TERMS, cancels={"bias": "k"})


@pytest.mark.parametrize("times", [1 + 1e-11, 1 - 1e-5, -1.0])
def test_a_slight_difference_is_seen(times: float, rng) -> None:
    with pytest.raises(AssertionError, match=r"exceeds the budget"):
        assert_same_numbers(lambda a: attention(a, times=times), attention, arrays(), TERMS, cancels={"bias": "k"})


def test_a_loss_of_float32_alone_is_seen(rng) -> None:
    """Right in float64, and in float32 a thousand roundings off."""

    def rough(a: dict[str, Tensor]) -> Tensor:
        return attention(a, times=1.0 + (1e-4 if a["q"].dtype == torch.float32 else 0.0))

    with pytest.raises(AssertionError, match=r"\(float32\).*exceeds the budget"):
        assert_same_numbers(rough, attention, arrays(), TERMS, cancels={"bias": "k"})


def test_a_gradient_that_is_wrong_is_seen(rng) -> None:
    def detached(a: dict[str, Tensor]) -> Tensor:
        return attention({**a, "q": 0.5 * a["q"] + 0.5 * a["q"].detach()})

    with pytest.raises(AssertionError, match=r"q \(float64\).*exceeds the budget"):
        assert_same_numbers(detached, attention, arrays(), TERMS, cancels={"bias": "k"})

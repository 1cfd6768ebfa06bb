"""KerpleBias: where its parameters start, and what holds beyond their bounds; SandwichBias' rows in a cache."""

import pytest
import torch
from torch import nn

from relattn import AlibiBias, KerpleBias, SandwichBias
from relattn.nn import KVCache, RelativeMultiheadAttention
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions

LENGTH = 9
KINDS = ("log", "power")


def rows(encoding: KerpleBias | SandwichBias, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """b[d] for d = -8 .. 8."""
    q = torch.zeros(1, encoding.num_heads, LENGTH, 2, dtype=dtype)
    table = encoding.terms(
        q, q, Positions(ContiguousPositions(0), ContiguousPositions(0), LENGTH, LENGTH, q.device)
    ).bias
    assert table is not None
    return table.rows(1 - LENGTH, 2 * LENGTH - 1)


def made(kind: str, r1: list[float], r2: list[float]) -> KerpleBias:
    encoding = KerpleBias(len(r1), kind).double()
    encoding.load_state_dict({"r1": torch.tensor(r1), "r2": torch.tensor(r2)})
    return encoding


@pytest.mark.parametrize(("kind", "largest"), [("log", (2.0, 1.0)), ("power", (1.0, 2.0))])
def test_where_training_starts(kind: str, largest: tuple[float, float]) -> None:
    encoding = KerpleBias(4000, kind)
    for parameter, end in zip((encoding.r1.detach(), encoding.r2.detach()), largest, strict=True):
        assert 0.0 <= float(parameter.min()) < 0.01 * end
        assert 0.99 * end < float(parameter.max()) <= end


BEYOND = [
    ("log", (-3.0, 0.5), (0.01, 0.5)),
    ("log", (0.5, -1.0), (0.5, 0.01)),
    ("power", (0.0, 0.5), (0.01, 0.5)),
    ("power", (0.5, 0.0), (0.5, 0.01)),
    ("power", (0.5, 7.0), (0.5, 2.0)),
]


@pytest.mark.parametrize(("kind", "given", "bound"), BEYOND)
def test_beyond_a_bound_the_bound_counts(kind: str, given: tuple, bound: tuple) -> None:
    """With its gradient: a clamp's own, which is 0, would hold a parameter there for ever."""
    found = []
    for r1, r2 in (given, bound):
        encoding = made(kind, [r1], [r2])
        table = rows(encoding)
        weights = torch.linspace(-1.0, 2.0, table.numel(), dtype=torch.float64).view_as(table)
        found.append([table, *torch.autograd.grad((weights * table).sum(), [encoding.r1, encoding.r2])])
    torch.testing.assert_close(found[0], found[1], rtol=0.0, atol=0.0)
    assert all(gradient.abs() > 0 for gradient in found[1][1:])


def test_the_log_has_no_largest_slope() -> None:
    """Only a power has an upper bound."""
    torch.testing.assert_close(rows(made("log", [3.0], [9.0]))[0, LENGTH], -3.0 * torch.tensor(10.0).double().log())


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_below_its_bound_comes_back(kind: str) -> None:
    encoding = made(kind, [0.5], [-0.05])
    optimizer = torch.optim.SGD(encoding.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        rows(encoding).sum().backward()  # of a loss that falls as the bias does
        optimizer.step()
    assert encoding.r2.item() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_at_distance_0_nothing_is_added_and_every_derivative_is_finite(kind: str) -> None:
    encoding = made(kind, [0.5, 1.5], [0.3, 1.7])
    table = rows(encoding)
    assert not table[:, LENGTH - 1].any()
    first = torch.autograd.grad(table.sum(), [encoding.r1, encoding.r2], create_graph=True)
    second = torch.autograd.grad(sum(one.sum() for one in first), [encoding.r1, encoding.r2])
    assert all(one.isfinite().all() and one.any() for one in (*first, *second))


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_parameters_are_computed_with_in_float32(kind: str) -> None:
    encoding = made(kind, [0.5, 1.5], [0.25, 1.75])
    expected = rows(encoding).detach()
    torch.testing.assert_close(rows(encoding.bfloat16(), torch.bfloat16).double(), expected, rtol=1e-6, atol=0.0)


def test_how_it_prints() -> None:
    assert repr(KerpleBias(4)) == "KerpleBias(4, kind='log')"
    assert repr(SandwichBias(4)) == "SandwichBias(4, width=128)"


@torch.no_grad()
@pytest.mark.parametrize("encoding", [KerpleBias(2), AlibiBias(2, learned=True)], ids=["kerple", "alibi"])
def test_a_parameter_may_change_beside_a_cache(encoding: nn.Module) -> None:
    """Rows of parameters that train are not kept, so later tokens meet the new ones."""
    layer, cache, x = RelativeMultiheadAttention(8, 2, encoding), KVCache(), torch.randn(1, 12, 8)
    layer(x[:, :8], is_causal=True, cache=cache)
    for parameter in encoding.parameters():
        parameter.mul_(5.0)
    later = [layer(x[:, i : i + 1], is_causal=True, cache=cache) for i in range(8, 12)]
    torch.testing.assert_close(torch.cat(later, dim=1), layer(x, is_causal=True)[:, 8:])


@torch.no_grad()
def test_a_cache_keeps_sandwich_s_rows() -> None:
    """A decoded token asks for the cosines of one offset."""
    encoding, asked = SandwichBias(2, 8), []
    layer, cache, x = RelativeMultiheadAttention(8, 2, encoding), KVCache(), torch.randn(1, 9, 8)
    pieces = [layer(x[:, :6], is_causal=True, cache=cache)]
    cos = torch.Tensor.cos
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "cos", lambda angles: asked.append(len(angles)) or cos(angles))
        pieces += [layer(x[:, i : i + 1], is_causal=True, cache=cache) for i in (6, 7, 8)]
    assert set(asked) == {1}
    torch.testing.assert_close(torch.cat(pieces, dim=1), layer(x, is_causal=True))

"""The compiled rotation: the numbers of its equation, gradients of every order, and who is served otherwise."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

from relattn import ContiguousPositions, ExplicitPositions, RotaryEmbedding
from relattn.backends.cpu import library
from relattn.encodings import rotation
from relattn.encodings.rotation import rotated
from tests.native.sets import every_set

pytestmark = pytest.mark.pairs

EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
LEAST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-24}
"""The smallest number that is no subnormal in a kernel, of float16 the smallest that there is."""

every_dtype = pytest.mark.parametrize("dtype", EPS, ids=str)
every_layout = pytest.mark.parametrize("interleaved", [False, True])


class Given(NamedTuple):
    """What is rotated, and by what."""

    features: Tensor
    cos: Tensor
    sin: Tensor


def drawn(
    batch: int, length: int, width: int, pairs: int, dtype: torch.dtype = torch.float32, *, explicit: bool = False
) -> Given:
    angles = 9.0 * torch.randn(*([batch] if explicit else []), length, pairs)
    return Given(torch.randn(batch, 3, length, width).to(dtype), angles.cos(), angles.sin())


def exact(given: Given, interleaved: bool, *, back: bool = False) -> tuple[Tensor, Tensor]:
    """The equation in float64, pair by pair, and the size of what is added in each number."""
    features, cos, sin = (tensor.double() for tensor in given)
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    expected, size = features.clone(), features.abs()
    pairs = cos.shape[-1]
    for f in range(pairs):
        a, b = (2 * f, 2 * f + 1) if interleaved else (f, f + pairs)
        c, s = cos[..., f], (-sin if back else sin)[..., f]
        x, y = features[..., a], features[..., b]
        expected[..., a], expected[..., b] = x * c - y * s, y * c + x * s
        size[..., a], size[..., b] = (x * c).abs() + (y * s).abs(), (y * c).abs() + (x * s).abs()
    return expected, size


def hold(found: Tensor, given: Given, interleaved: bool, *, back: bool = False) -> None:
    """Two products and their sum are rounded once each, half an EPS of float32, and the sum once more in its dtype."""
    expected, size = exact(given, interleaved, back=back)
    dtype = given.features.dtype
    in_float32 = EPS[torch.float32] * size
    stored = 0.0 if dtype == torch.float32 else EPS[dtype] / 2 * (expected.abs() + in_float32)
    assert found.dtype == dtype and found.shape == given.features.shape and found.is_contiguous()
    assert ((found.double() - expected).abs() <= in_float32 + stored + 2 * LEAST[dtype]).all()


@pytest.fixture
def compiled_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """What the compiled rotation was asked to turn."""
    calls: list[Tensor] = []
    rotate = rotation.rotate

    def counted(features: Tensor, *arguments: Tensor, **options: bool) -> Tensor:
        calls.append(features)
        return rotate(features, *arguments, **options)

    monkeypatch.setattr(rotation, "rotate", counted)
    yield calls


@every_set
@every_dtype
@every_layout
@pytest.mark.parametrize("explicit", [False, True])
def test_it_is_the_equation(
    instructions: str, dtype: torch.dtype, interleaved: bool, explicit: bool, rng: np.random.Generator, compiled_calls
) -> None:
    """Widths and lengths on both sides of a vector and of a block; the features beyond the pairs pass."""
    for pairs in (1, 3, 8, 16, 17, 32, 40):
        length, width = int(rng.integers(1, 80)), 2 * pairs + int(rng.integers(3))
        given = drawn(2, length, width, pairs, dtype, explicit=explicit)
        for back in (False, True):
            hold(rotated(*given, interleaved=interleaved, back=back), given, interleaved, back=back)
    assert len(compiled_calls) == 14


@every_set
@every_layout
def test_bfloat16_is_rounded_as_pytorch_rounds(instructions: str, interleaved: bool) -> None:
    """To the nearest, of two as near the even one: cosines of one bit more make many a tie. NaN stays NaN."""
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    numbers = torch.cat([numbers[~numbers.isfinite()], numbers[numbers.isfinite() & (numbers.abs() > 2.0**-100)]])
    features = torch.stack([numbers, torch.zeros_like(numbers)], dim=-1)[None, None]
    for cosine in (1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 0.7):
        cos = torch.full((len(numbers), 1), cosine)
        found = rotated(features, cos, torch.zeros_like(cos), interleaved=interleaved)[0, 0, :, 0]
        torch.testing.assert_close(found, (numbers.float() * cosine).bfloat16(), rtol=0.0, atol=0.0, equal_nan=True)


@every_layout
def test_what_passes_unrotated_keeps_its_bits(interleaved: bool) -> None:
    """Subnormal numbers and the bits of a NaN, too."""
    given = drawn(1, 5, 12, 4)
    bits = torch.tensor([1, 0x7FC12345, 0x00000777, 0x7F800001], dtype=torch.int32)
    given.features[..., 8:] = bits.view(torch.float32)
    assert (rotated(*given, interleaved=interleaved)[..., 8:].contiguous().view(torch.int32) == bits).all()


@every_set
@every_dtype
@every_layout
def test_every_number_of_threads_gives_the_same_bits(
    instructions: str, dtype: torch.dtype, interleaved: bool, compiled_calls
) -> None:
    """And a row the same alone as among others, as a cache turns it."""
    assert library.has_threads()
    given, before, found = drawn(3, 500, 70, 35, dtype), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            found.append(rotated(*given, interleaved=interleaved))
    finally:
        torch.set_num_threads(before)
    one = given._replace(features=given.features[:, 1:2, 77:78], cos=given.cos[77:78], sin=given.sin[77:78])
    assert all(torch.equal(other, found[0]) for other in found)
    assert torch.equal(rotated(*one, interleaved=interleaved), found[0][:, 1:2, 77:78])
    assert len(compiled_calls) == 5


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "positions before heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "features first": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every other row": lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
    "a part of wider rows": lambda x: torch.cat([x, x], dim=3)[..., : x.shape[3]],
    "one batch element for all": lambda x: x[:1].expand_as(x),
    "negated when read": torch._neg_view,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@every_layout
def test_inputs_of_any_layout(layout: str, interleaved: bool, compiled_calls) -> None:
    given = drawn(2, 40, 12, 5)
    laid = LAYOUTS[layout](given.features)
    contiguous = laid.clone(memory_format=torch.contiguous_format)
    assert laid.is_neg() or laid.stride() != contiguous.stride()
    one, other = (rotated(*given._replace(features=x), interleaved=interleaved) for x in (laid, contiguous))
    assert torch.equal(one, other) and len(compiled_calls) == 2


def test_torchs_default_device_changes_nothing(compiled_calls) -> None:
    """Models are loaded under another one."""
    given = drawn(2, 6, 10, 4)
    torch.set_default_device("meta")
    try:
        found = rotated(*given, interleaved=False)
    finally:
        torch.set_default_device(None)
    hold(found, given, False)
    assert len(compiled_calls) == 1


@pytest.mark.parametrize("sizes", [(0, 3), (2, 0)], ids=str)
def test_empty_batches_and_lengths(sizes: tuple[int, int], compiled_calls) -> None:
    given = drawn(*sizes, 8, 4)
    assert rotated(*given, interleaved=False).shape == given.features.shape and len(compiled_calls) == 1


@every_dtype
@every_layout
def test_gradients_are_rotations_back(dtype: torch.dtype, interleaved: bool, compiled_calls) -> None:
    """The first, its own gradient by the cotangent, and batched ones, which no kernel takes."""
    given, cotangent = drawn(2, 40, 13, 5, dtype), torch.randn(2, 3, 40, 13).to(dtype).requires_grad_()
    leaf = given.features.requires_grad_()
    turned = rotated(*given, interleaved=interleaved)
    (first,) = torch.autograd.grad(turned, leaf, cotangent, create_graph=True)
    (second,) = torch.autograd.grad(first, cotangent, leaf.detach(), retain_graph=True)
    hold(first.detach(), given._replace(features=cotangent.detach()), interleaved, back=True)
    hold(second, given._replace(features=leaf.detach()), interleaved)
    assert len(compiled_calls) == 3
    turned = rotated(*given, interleaved=interleaved)
    both = torch.stack([cotangent.detach(), given.features.detach()])
    (batched,) = torch.autograd.grad(turned, leaf, both, is_grads_batched=True)
    for found, one in zip(batched, both, strict=True):
        hold(found.contiguous(), given._replace(features=one), interleaved, back=True)
    assert len(compiled_calls) == 4


def test_an_encoding_turns_queries_keys_and_their_gradients_so(compiled_calls) -> None:
    """Runs and explicit positions; float64 by operations."""
    encoding = RotaryEmbedding(8)
    key = torch.randn(2, 3, 5, 8, requires_grad=True)
    places = ContiguousPositions(0), ExplicitPositions(torch.arange(10).view(2, 5))
    prepared = sum(encoding.prepare_keys(key, place) for place in places)
    assert len(compiled_calls) == 2
    prepared.sum().backward()
    assert len(compiled_calls) == 4
    with torch.no_grad():
        wide = sum(encoding.prepare_keys(key.double(), place) for place in places)
    assert len(compiled_calls) == 4 and wide.dtype == torch.float64
    # Two angles that are off by half an EPS of their cosines and sines, and what `hold` allows, twice.
    assert ((prepared - wide).abs() <= 2 * 2 * EPS[torch.float32] * 2 * key.abs().max()).all()


def by_a_fake(given: Given) -> Tensor:
    with FakeTensorMode() as mode:
        return rotated(*(mode.from_tensor(tensor) for tensor in given), interleaved=False)


def by_forward_mode(given: Given) -> Tensor:
    with forward_ad.dual_level():
        turned = rotated(forward_ad.make_dual(given.features, given.features), *given[1:], interleaved=False)
        primal, tangent = forward_ad.unpack_dual(turned)
        assert tangent is not None and torch.equal(primal, tangent)
        return primal


def by_a_trace(given: Given) -> Tensor:
    return torch.jit.trace(lambda *tensors: rotated(*tensors, interleaved=False), given, check_trace=False)(*given)


OTHERS: dict[str, Callable[[Given], Tensor]] = {
    "torch.compile": lambda given: torch.compile(rotated, fullgraph=True, backend="eager")(*given, interleaved=False),
    "vmap": lambda given: torch.vmap(lambda x: rotated(x, *given[1:], interleaved=False))(given.features[None])[0],
    "grad": lambda given: torch.func.grad(lambda x: (rotated(x, *given[1:], interleaved=False) ** 2).sum() / 2)(
        given.features
    ),
    "torch.jit.trace": by_a_trace,
    "forward mode": by_forward_mode,
    "meta": lambda given: rotated(*(tensor.to("meta") for tensor in given), interleaved=False),
    "fake": by_a_fake,
}


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("who", OTHERS)
def test_who_looks_on_sees_operations(who: str, compiled_calls) -> None:
    """They are also what a rotation is where there are no kernels."""
    given = drawn(2, 6, 10, 4)
    found = OTHERS[who](given)
    assert found.shape == given.features.shape and not compiled_calls
    if who == "grad":  # of half the length, squared, which no rotation changes
        assert ((found - given.features).abs() <= 4 * EPS[torch.float32] * 2 * given.features.abs().max()).all()
    elif who not in ("meta", "fake"):
        hold(found, given, False)


@every_layout
def test_without_kernels_operations_serve(interleaved: bool, monkeypatch, compiled_calls) -> None:
    monkeypatch.setattr("relattn.backends.cpu.rotation.kernels", lambda: "RELATTN_NATIVE=off switches its kernels off")
    given = drawn(2, 6, 10, 4)
    for back in (False, True):
        hold(rotated(*given, interleaved=interleaved, back=back), given, interleaved, back=back)
    assert not compiled_calls

"""Who calls the kernels: the operator, autograd alone, or nobody between; and what else PyTorch does around a call."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from relattn import (
    KeyQueryEmbedding,
    OffsetTable,
    RelativeEmbedding,
    RelativeEncoding,
    ScoreTerms,
    ShawEmbedding,
    T5Bias,
    attention_and_lse,
    explain,
    relative_attention,
)
from relattn.backends.cpu import operator


class Listener(TorchDispatchMode):
    """Remembers which operators of ours are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "relattn":
            self.asked.append(function.name())
        return function(*args, **(kwargs or {}))


def made(backend: str) -> tuple[nn.Module, list[Tensor], Any]:
    """An encoding, leaves with a gradient, and the call of them by a backend."""
    encoding = ShawEmbedding(8, 3)
    inputs = [torch.randn(2, 2, 40, 8, requires_grad=True) for _ in range(3)]

    def call(*given: Tensor) -> Tensor:
        return relative_attention(*given, encoding=encoding, is_causal=True, backend=backend)

    return encoding, inputs, call


def step(encoding: nn.Module, inputs: list[Tensor], call: Any) -> list[Tensor]:
    """The output and every gradient."""
    output = call(*inputs)
    return [output, *torch.autograd.grad(output.sin().sum(), [*inputs, *encoding.parameters()])]


def assert_same_bits(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("backend", ["native", "blocks"])
def test_a_mode_hears_the_operators_and_nothing_else_changes(backend: str) -> None:
    encoding, inputs, call = made(backend)
    expected = step(encoding, inputs, call)
    assert expected[0].grad_fn is not None and expected[0].grad_fn.name() == "PlainAutogradBackward"
    with Listener() as listener:
        heard = step(encoding, inputs, call)
    assert listener.asked == [f"relattn::{backend}", f"relattn::{backend}_backward"]
    assert_same_bits(heard, expected)


@pytest.mark.parametrize("start", [3, torch.tensor(3)], ids=["int", "tensor"])
def test_without_gradient_the_same_bits(start: int | Tensor) -> None:
    encoding, inputs = T5Bias(2), [torch.randn(2, 2, 30, 8, requires_grad=True) for _ in range(3)]

    def answers() -> list[Tensor]:
        asked = {"encoding": encoding, "query_position": start, "backend": "native"}
        return list(attention_and_lse(*inputs, **asked))

    recorded = answers()
    with Listener() as listener:
        assert_same_bits(answers(), recorded)
    assert listener.asked == ["relattn::native"]
    for nobody in (torch.no_grad(), torch.inference_mode()):
        with nobody:
            found = answers()
        assert not found[0].requires_grad
        assert_same_bits(found, recorded)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(reentrant: bool) -> None:
    encoding, inputs, call = made("native")
    expected = step(encoding, inputs, call)
    inputs = [one.detach().requires_grad_() for one in inputs]
    checkpoint(call, *inputs, use_reentrant=reentrant).sin().sum().backward()
    assert_same_bits([one.grad for one in (*inputs, *encoding.parameters())], expected[1:])


def test_what_hooks_save_may_lie_otherwise() -> None:
    """Tensors may come back with other strides."""
    encoding, inputs, call = made("native")
    expected = step(encoding, inputs, call)

    def spread(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, torch.full_like(tensor, -1)], dim=-1)[..., 0] if tensor.dim() else tensor

    with saved_tensors_hooks(lambda tensor: tensor, spread):
        assert_same_bits(step(encoding, inputs, call), expected)


def test_autocast_narrows_its_inputs() -> None:
    _, inputs, call = made("native")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = call(*inputs)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, call(*(one.bfloat16() for one in inputs)))


def test_shapes_alone_are_enough_for_blocks() -> None:
    inputs = [torch.empty(1, 2, 40, 8, device="meta", requires_grad=True) for _ in range(3)]
    output = relative_attention(*inputs, encoding=T5Bias(2).to("meta"), backend="blocks")
    assert output.shape == (1, 2, 40, 8)
    assert "its kernels run on a CPU, and the query lies on meta" in explain(*inputs).others["native"]


def test_subnormal_numbers_count_as_zero_inside_alone() -> None:
    """Processors are slow with them. The threads that call and serve go on with them afterwards."""
    inputs = [torch.randn(2, 4, 300, 8) for _ in range(2)]
    small = torch.full((2, 4, 300, 8), 1e-40)
    assert (relative_attention(*inputs, small, backend="native") == 0).all()
    assert (relative_attention(*inputs, small, backend="dense") > 0).all()
    assert (torch.full((2**20,), 1e-40) * 1.0 > 0).all()


def in_four_threads(work: Callable[[int], Any]) -> list[Any]:
    """What work(0) ... work(3) give, each in a Python thread of its own; all start at once."""
    together = threading.Barrier(4)

    def wait_and_work(n: int) -> Any:
        together.wait()
        return work(n)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(wait_and_work, range(4)))


@pytest.fixture(params=[1, 2])
def threads_of_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def larger(encoding: RelativeEncoding) -> tuple[nn.Module, list[Tensor], Any]:
    """As `made`, with pairs enough for several threads of torch, and a key head for each two."""
    inputs = [torch.randn(2, heads, 130, 16, requires_grad=True) for heads in (4, 2, 2)]

    def call(*given: Tensor) -> Tensor:
        return relative_attention(*given, encoding=encoding, enable_gqa=True, backend="native")

    return encoding, inputs, call


ENCODINGS = {
    "tables of every kind": lambda: KeyQueryEmbedding(16, 130) + ShawEmbedding(16, 5) + T5Bias(4),
    "by head": lambda: RelativeEmbedding(16, 130, num_heads=4),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ENCODINGS)
def test_four_python_threads_go_back_at_once(name: str, threads_of_torch: None) -> None:
    """Each over a graph of its own, again and again."""
    encoding, inputs, call = zip(*(larger(ENCODINGS[name]()) for _ in range(4)), strict=True)
    outputs = [call[n](*inputs[n]).sin().sum() for n in range(4)]

    def back(n: int) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs[n], [*inputs[n], *encoding[n].parameters()], retain_graph=True)

    expected = [back(n) for n in range(4)]
    assert not torch.equal(expected[0][0], expected[1][0])
    for n, found in enumerate(in_four_threads(lambda n: [back(n) for _ in range(20)])):
        for gradients in found:
            assert_same_bits(gradients, expected[n])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ENCODINGS)
def test_four_python_threads_train_and_answer_at_once(name: str, threads_of_torch: None) -> None:
    """Two take whole steps and two attend without a gradient, all with one encoding."""
    encoding = ENCODINGS[name]()
    problems = [larger(encoding) for _ in range(4)]

    def work(n: int) -> list[Tensor]:
        if n < 2:
            return step(*problems[n])
        _, inputs, call = problems[n]
        with torch.no_grad():
            return [call(*inputs), call(inputs[0][:, :, :1], *inputs[1:])]

    expected = [work(n) for n in range(4)]
    for n, found in enumerate(in_four_threads(lambda n: [work(n) for _ in range(20)])):
        for answers in found:
            assert_same_bits(answers, expected[n])


@pytest.mark.slow
def test_a_hundred_runs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of answers and gradients, by one to four threads in turn, which the kernels are told to take."""
    told: list[int] = []
    pack = operator.packed

    def hear(*given: Any) -> bytearray:
        told.append(given[5])
        return pack(*given)

    monkeypatch.setattr(operator, "packed", hear)
    encoding, inputs, call = larger(ENCODINGS["tables of every kind"]())
    before = torch.get_num_threads()
    try:
        expected = step(encoding, inputs, call)
        told.clear()
        for run in range(100):
            torch.set_num_threads(1 + run % 4)
            assert_same_bits(step(encoding, inputs, call), expected)
    finally:
        torch.set_num_threads(before)
    assert told == [1 + run % 4 for run in range(100) for _ in ("forward", "backward")]


@pytest.mark.parametrize("queries", [1, 40], ids=["few", "many"])
@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask", "key_bias", "table"])
def test_a_negation_that_torch_has_put_off(name: str, queries: int, rng: np.random.Generator) -> None:
    """As that of (z.conj()).imag: the bytes have the other sign, and a bit of the tensor says so."""

    def drawn(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape)).float()

    given = {"query": drawn(1, 2, queries, 16), "key": drawn(1, 2, 40, 16), "value": drawn(1, 2, 40, 16)}
    given |= {"attn_mask": drawn(queries, 40), "key_bias": drawn(1, 2, 40), "table": drawn(2, 79, 16)}

    def attend(tensors: dict[str, Tensor]) -> list[Tensor]:
        held = {key: tensor.requires_grad_() if tensor.is_leaf else tensor for key, tensor in tensors.items()}
        table = OffsetTable(held["table"], -39, "clamp")
        rest = {key: held[key] for key in ("query", "key", "value", "attn_mask", "key_bias")}
        encoding = ScoreTerms(relative_keys=table)
        output = relative_attention(**rest, encoding=encoding, backend="native")
        with torch.no_grad():
            alone = relative_attention(**rest, encoding=encoding, backend="native")
        leaves = [tensor for key, tensor in held.items() if key != name]
        return [output, alone, *torch.autograd.grad(output, leaves, torch._neg_view(drawn_once))]

    drawn_once = drawn(1, 2, queries, 16)
    lazy = attend({**given, name: torch._neg_view(given[name])})
    plain = attend({key: (-one if key == name else one.detach()) for key, one in given.items()})
    for found, expected in zip(lazy, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)

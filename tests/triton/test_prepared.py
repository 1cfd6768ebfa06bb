"""Passes that are replayed: to the bit the numbers of passes that are not, whatever tensors come, and only where the
same kernels would be launched.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relattn import (
    KerpleBias,
    KeyQueryEmbedding,
    RelativeEmbedding,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    UnsupportedError,
    plan,
    relative_attention,
)
from tests.triton import INTERPRETED

pytest.importorskip("triton", reason="Triton is a package for Linux")
from triton.compiler.compiler import CompiledKernel

from relattn.backends.triton.host import autotune, prepared, ready, replay
from relattn.backends.triton.kernels import decoding, diagonals, forward, keys, ordered_launch, queries
from tests.triton.silent import Launch, silent

pytest_plugins = ["tests.contract.fresh"]
compiled = pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled")
BACKWARD_FIRST = "queries_kernel"

HEADS, WIDTH = 2, 4
ENCODINGS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "relative": lambda: RelativeEmbedding(WIDTH, 40, num_heads=HEADS),
    "relative clamped": lambda: RelativeEmbedding(WIDTH, 5, beyond="clamp"),
    "shaw": lambda: ShawEmbedding(WIDTH, 4),
    "t5": lambda: T5Bias(HEADS),
    "kerple": lambda: KerpleBias(HEADS),
    "key_query": lambda: KeyQueryEmbedding(WIDTH, 40),
    "transformer-xl": lambda: TransformerXLEmbedding(HEADS, WIDTH),
    "sum": lambda: RelativeEmbedding(WIDTH, 40) + T5Bias(HEADS),
}
KERNELS = {
    kernel.__name__: kernel
    for kernel in (
        forward.forward_kernel, queries.queries_kernel, keys.keys_kernel, diagonals.tables_kernel,
        ordered_launch.several_kernel, decoding.split_keys_kernel, decoding.merge_kernel,
    )
}  # fmt: skip


def at(address: int, like: Tensor) -> Tensor:
    """The tensor of that metadata at an address."""
    last = sum((size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True))
    memory = (ctypes.c_byte * ((last + 1) * like.element_size())).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype).as_strided(like.shape, like.stride())


def with_kinds(argument: Any, like: Any) -> Any:
    """A launch's argument with tensors in place of addresses, in named tuples."""
    if isinstance(like, Tensor):
        return argument if isinstance(argument, Tensor) else at(argument, like)
    if isinstance(like, tuple):
        inside = [with_kinds(*both) for both in zip(argument, like, strict=True)]
        return type(like)(*inside) if hasattr(like, "_fields") else tuple(inside)
    return argument


class Interpreted(CompiledKernel):
    """A kernel of the interpreter in place of a compiled one; `arguments` are those of its first launch."""

    replayed = 0

    def __init__(self, name: str, arguments: tuple) -> None:
        self.name, self.arguments = name, arguments
        self.function = self.packed_metadata = None

    def run(self, programs: int, *given: Any) -> None:
        Interpreted.replayed += 1
        count = len(self.arguments)
        arguments = with_kinds(given[8 : 8 + count], self.arguments)
        KERNELS[self.name][(programs,)](*arguments, *given[8 + count :])


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter has launched can be launched again."""

    def keep(known_by: tuple, arguments: tuple, launched: None, constants: tuple, owned: int = 1) -> ready.Ready:
        return ready.Ready(Interpreted(known_by[0], arguments), constants, owned)  # pyright: ignore[reportArgumentType]

    for module in (autotune, decoding):
        monkeypatch.setattr(module, "keep", keep)
    active = SimpleNamespace(get_current_device=int, get_current_stream=int)
    monkeypatch.setattr(ready, "driver", SimpleNamespace(active=active))
    Interpreted.replayed = 0


def gradients(encoding: Any, tensors: list[Any], cotangent: Tensor, **given: Any) -> list[Any]:
    """The output, and where a gradient is recorded those by tensors and parameters."""
    output = relative_attention(*tensors, encoding=encoding, backend="triton", **given)
    if not output.requires_grad:
        return [output]
    every = [*tensors, *([] if encoding is None else encoding.parameters())]
    wanted = [one for one in every if one.requires_grad]
    return [output, *torch.autograd.grad(output, wanted, cotangent.expand_as(output), allow_unused=True)]


@contextmanager
def deterministic(asked: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(asked)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CALLS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"is_causal": True},
    "a window": {"window": (3, 2)},
    "a scale and a cap": {"scale": 0.3, "softcap": 2.0},
    "few queries": {"is_causal": True, "lengths": (2, 19), "query_position": 17},
    "few queries, a window": {"is_causal": True, "window": (5, 0), "lengths": (2, 19), "query_position": 17},
    "other lengths": {"lengths": (20, 33), "key_position": 3},
    "half": {"is_causal": True, "dtype": torch.bfloat16},
}
INTERPRETED_CALLS = [
    ("relative", "causal", False, False), ("relative", "causal", True, False), ("sum", "half", True, False),
    ("key_query", "a window", True, True), ("t5", "few queries, a window", False, False),
]  # fmt: skip


def tensors_of(lengths: tuple[int, int], dtype: torch.dtype, records: bool) -> list[tuple[list[Any], Tensor]]:
    """Tensors, and the gradient by the output: at times one tensor for all, one from an address that is no multiple of
    16, a gradient without memory of its own, or one whose rows lie elsewhere.
    """
    several = []
    for shift in (0, 0, 0, 1, 1, 0, 0):
        tensors = []
        for length in (lengths[0], lengths[1], lengths[1]):
            memory = torch.randn(2 * HEADS * length * WIDTH + shift, dtype=dtype)[shift:]
            tensors.append(memory.view(2, HEADS, length, WIDTH).requires_grad_(records))
        several.append((tensors, torch.randn(2, HEADS, lengths[0], WIDTH, dtype=dtype)))
    if lengths[0] == lengths[1]:
        several[1] = [several[1][0][0]] * 3, several[1][1]
    several[4] = several[4][0], torch.ones((), dtype=dtype)
    several[5] = several[5][0], several[5][1].transpose(1, 2).contiguous().transpose(1, 2)
    return several


def case(name: str, call: str, records: bool) -> tuple[Any, list[tuple[list[Any], Tensor]], dict[str, Any]]:
    """An encoding, the tensors of several calls, and what else they are given."""
    given = dict(CALLS[call])
    dtype = given.pop("dtype", torch.float32)
    several, encoding = tensors_of(given.pop("lengths", (9, 9)), dtype, records), ENCODINGS[name]()
    return encoding if encoding is None else encoding.to(dtype).requires_grad_(records), several, given


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize(("name", "call", "records", "in_order"), INTERPRETED_CALLS)
def test_a_replay_has_the_bits_of_other_passes(
    name: str, call: str, records: bool, in_order: bool, device: str, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding, several, given = case(name, call, records)
    with deterministic(in_order):
        found = [gradients(encoding, *one, **given) for one in several]
        replayed = Interpreted.replayed
        monkeypatch.setattr(plan, "_read_of_call", lambda *_: None)
        for ours, one in zip(found, several, strict=True):
            theirs = gradients(encoding, *one, **given)
            for a, b in zip(ours, theirs, strict=True):
                assert (a is b is None) or (torch.equal(a, b) and a.dtype == b.dtype and a.shape == b.shape)
    assert Interpreted.replayed == replayed > 0


@pytest.mark.parametrize("device", [INTERPRETED])
def test_a_backward_pass_that_is_watched_has_the_same_gradients(device: str, kept: None) -> None:
    """Here by autograd itself; a part of the table is met."""
    encoding, several, given = case("relative", "causal", True)
    for tensors, cotangent in several[:3]:
        output = relative_attention(*tensors, encoding=encoding, backend="triton", **given)
        wanted = [*{*tensors}, *encoding.parameters()]
        keep: Any = {"grad_outputs": cotangent, "retain_graph": True}
        for a, b in zip(
            torch.autograd.grad(output, wanted, create_graph=True, **keep),
            torch.autograd.grad(output, wanted, **keep),
            strict=True,
        ):
            assert a.requires_grad and torch.equal(a, b)
    assert Interpreted.replayed > 0


def alike(launches: list[Launch], tensors: list[Any]) -> list[Any]:
    """The launches with names in place of addresses: a place in a tensor, or where the memory came first in a pass."""
    found, names = [], dict[int, str]()
    for launch in launches:
        leaves = []
        if launch.kernel == BACKWARD_FIRST:
            names = {}
        for leaf in launch.leaves:
            name = repr(leaf)
            if type(leaf) is int and leaf > 2**40:
                name = names.setdefault(leaf, f"memory {len(names)}")
                for n, tensor in enumerate(tensors):
                    if 0 <= leaf - tensor.data_ptr() < tensor.nbytes:
                        name = f"tensor {n} from {leaf - tensor.data_ptr()}"
            leaves.append(name)
        found.append((launch.kernel, launch.options, launch.programs, leaves))
    return found


@compiled
@pytest.mark.one_in(6)
@pytest.mark.parametrize("in_order", [False, True], ids=["added", "in order"])
@pytest.mark.parametrize("records", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_replay_launches_what_other_passes_launch(
    name: str, call: str, records: bool, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kernels with the same numbers, at the addresses of its own tensors."""
    encoding, several, given = case(name, call, records)
    parameters = [] if encoding is None else list(encoding.parameters())
    run, replayed = replay.Replay.run, list[bool]()
    monkeypatch.setattr(replay.Replay, "run", lambda *all_: (replayed.append(True), run(*all_))[1])

    def launches() -> list[Any]:
        found = []
        for tensors, cotangent in several:
            launched.clear()
            shapes = [one if one is None else one.shape for one in gradients(encoding, tensors, cotangent, **given)]
            found.append((shapes, alike(launched, [*tensors, *parameters])))
        return found

    with silent() as launched, deterministic(in_order):
        ours = launches()
        monkeypatch.setattr(plan, "_read_of_call", lambda *_: None)
        count = len(replayed)
        assert ours == launches()
    assert len(replayed) == count
    assert (count > 0) == (not records or call != "few queries, a window")


@compiled
def test_what_is_refused_once_is_refused_later() -> None:
    """By the backward pass of a call that has a plan."""
    encoding, several, given = case("shaw", "causal", True)
    with silent():
        for tensors, cotangent in several[:3]:
            output = relative_attention(*tensors, encoding=encoding, backend="triton", **given)
            with pytest.raises(UnsupportedError, match="is_grads_batched"):
                torch.autograd.grad(output, tensors[:1], cotangent[None], is_grads_batched=True, retain_graph=True)
            first = torch.autograd.grad(output, tensors[:1], cotangent, create_graph=True)[0]
            with pytest.raises(UnsupportedError, match="double backward"):
                first.sum().backward()


@compiled
def test_hooks_may_lay_out_otherwise_what_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they unpack is what the kernels read."""
    encoding, several, given = case("shaw", "causal", True)
    cotangent, found = several[0][1], []
    tensors = [torch.randn(2, 9, HEADS, WIDTH).transpose(1, 2).requires_grad_() for _ in range(3)]
    with silent() as launched:
        for known in (True, False):
            if not known:
                monkeypatch.setattr(plan, "_read_of_call", lambda *_: None)
            for unpack in (lambda one: one, lambda one: one.contiguous()) * 3:
                launched.clear()
                with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpack):
                    gradients(encoding, tensors, cotangent, **given)
                found.append(alike(launched, tensors))
    assert found[:6] == found[6:]
    assert found[4] != found[5]


@compiled
def test_settings_between_calls_decide_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 beside a bias the precision of products is one, determinism another."""
    encoding, several, given = case("t5", "causal", True)
    tensors, cotangent = several[0]
    before, found = torch.get_float32_matmul_precision(), []
    with silent() as launched:
        try:
            for known in (True, False):
                if not known:
                    monkeypatch.setattr(plan, "_read_of_call", lambda *_: None)
                for in_order, precision in [(False, "highest"), (True, "high"), (False, "high")] * 3:
                    torch.set_float32_matmul_precision(precision)
                    launched.clear()
                    with deterministic(in_order):
                        gradients(encoding, tensors, cotangent, **given)
                    found.append([launch[:3] for launch in launched])
        finally:
            torch.set_float32_matmul_precision(before)
    assert found[:9] == found[9:]
    assert found[:3] * 3 == found[:9]
    assert found[0] != found[1] != found[2] != found[0]


@compiled
def test_few_passes_of_a_call_are_kept() -> None:
    """However its tensors are aligned."""
    with silent(), torch.no_grad():
        for shift in range(3 * prepared.MOST):
            memory = torch.randn(64 + 4 * 9 * WIDTH)
            at: list[Any] = [memory[shift // 4**n % 4 :][: 4 * 9].view(1, 1, 9, 4) for n in range(3)]
            relative_attention(*at, backend="triton")
        (known,) = plan.KNOWN.values()
        (made,) = known.plans.values()
    passes: Any = made.straight
    assert len(passes.passes) == prepared.MOST


def test_without_private_parts_of_triton_each_launch_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept, and nothing replayed."""
    with monkeypatch.context() as patch:
        patch.setattr(ready, "specialize", None)
        assert not ready._can_relaunch()
    monkeypatch.setattr(ready, "CAN_RELAUNCH", False)
    monkeypatch.setattr(replay.Replay, "run", None)
    encoding, several, given = case("shaw", "causal", True)
    with silent() as launched:
        for tensors, cotangent in several:
            launched.clear()
            gradients(encoding, tensors, cotangent, **given)
            assert [launch.kernel for launch in launched] == ["forward_kernel", "queries_kernel"]
        assert not ready.remembered


@compiled
@pytest.mark.parametrize("name", ["relative", "shaw"])
def test_a_checkpoint_may_compute_the_first_call_again_by_its_plan(name: str) -> None:
    """It compares what both have saved."""
    encoding = {"relative": RelativeEmbedding(WIDTH, 64), "shaw": ShawEmbedding(WIDTH, 4)}[name]
    with silent():
        for length in (9, 9, 12):
            query = torch.randn(1, 1, length, WIDTH, requires_grad=True)

            def call(query: Tensor) -> Tensor:
                return relative_attention(query, query, query, encoding=encoding, is_causal=True, backend="triton")

            output: Any = checkpoint(call, query, use_reentrant=False)
            output.sum().backward()
            assert query.grad is not None


def test_nothing_is_held_when_a_pass_was_noted() -> None:
    tensor = torch.randn(3)
    with replay.noting():
        replay.note(None, 1, ())
        replay.notes.launches.append((None, 1, (tensor, replay.new_memory(tensor, (2,)))))  # pyright: ignore[reportArgumentType]
    assert replay.notes.made is None
    assert not replay.notes.launches

"""Context parallelism among PyTorch's own tools: dropout, bytes, compilers, checkpoints, half precision, a layer."""

from __future__ import annotations

import copy
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import relattn
from measure.memory import current, peak, reset_peak
from relattn.distributed import ContextParallel, context_parallel_attention, explain, join, plan, ring_schedule, split
from relattn.distributed.group import Group
from relattn.distributed.parts import Layout, pieces
from tests import seeds
from tests.distributed.ranks import Ranks

ROOT = Path(__file__).parents[2]


def drawn(*shape: int, name: object = "", dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(seeds.generator("uses", name, shape).normal(size=shape)).to(dtype)


def model(dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> nn.Sequential:
    made = nn.Sequential(
        *(relattn.nn.RelativeMultiheadAttention(16, 4, relattn.ShawEmbedding(4, 3), dropout=dropout) for _ in range(2))
    )
    for name, parameter in made.named_parameters():
        with torch.no_grad():
            parameter.copy_(drawn(*parameter.shape, name=name) * 0.3)
    return made.to(dtype)


def worst(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-300)).item()


def dropped(rank: int, world: int, layout: Layout, rotate: Any, dtype: str) -> float:
    mesh, number = init_device_mesh("cpu", (world,)), getattr(torch, dtype)
    whole = [drawn(2, 4, 32, 8, name=name, dtype=number).requires_grad_() for name in "qkv"]
    backend = "blocks" if number == torch.float64 else "native"
    torch.manual_seed(seeds.seed("dropout"))
    expected = relattn.relative_attention(*whole, dropout_p=0.4, is_causal=True, backend=backend)  # pyright: ignore[reportCallIssue]
    expected.sum().backward()
    own = [split(tensor.detach(), mesh, dim=2, layout=layout).requires_grad_() for tensor in whole]
    torch.manual_seed(seeds.seed("dropout") + rank)  # the draws are those of rank 0
    with mock.patch.object(ring_schedule, "FEWEST", 5):
        found = context_parallel_attention(
            *own, dropout_p=0.4, is_causal=True, mesh=mesh, layout=layout, rotate=rotate, backend=backend
        )  # pyright: ignore[reportCallIssue]
        assert isinstance(found, Tensor)
        found.sum().backward()
    pairs = [(found, expected), *((one.grad, all_of.grad) for one, all_of in zip(own, whole, strict=True))]
    return max(worst(one.detach(), split(all_of.detach(), mesh, dim=2, layout=layout)) for one, all_of in pairs)  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rotate", ["ring", "all_gather", "ulysses"])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_dropout_drops_what_one_process_drops(layout: Layout, rotate: str, two: Ranks) -> None:
    assert max(two(dropped, 2, layout, rotate, "float64")) < 1e-13
    assert max(two(dropped, 2, layout, rotate, "float32")) < 1e-5


def traffic(rank: int, world: int, layout: Layout, rotate: Any, window: Any) -> tuple[int, int, int, int]:
    """Bytes sent forward and in a whole step, and those that `explain` names."""
    mesh = init_device_mesh("cpu", (world,))
    own = [torch.ones(1, heads, 64, 8, requires_grad=True) for heads in (8, 4, 4)]
    mask = torch.ones(1, 64, dtype=torch.bool)
    options: dict[str, Any] = {
        "mesh": mesh, "layout": layout, "rotate": rotate, "window": window, "enable_gqa": True, "key_mask": mask,
    }  # fmt: skip
    groups: list[Group] = []
    init = Group.__init__

    def kept(self: Group, *arguments: Any) -> None:
        init(self, *arguments)
        groups.append(self)

    Group.__init__ = kept
    try:
        found = context_parallel_attention(*own, **options)
    finally:
        Group.__init__ = init
    assert isinstance(found, Tensor)
    forward = sum(group.sent for group in groups)
    found.sum().backward()
    said = explain(*own, **options)
    return forward, sum(group.sent for group in groups), said.sent[said.rotate].forward, sum(said.sent[said.rotate])


@pytest.mark.one_in(6)
@pytest.mark.parametrize("rotate", ["ring", "all_gather", "ulysses"])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_the_bytes_sent_are_those_of_the_formulas(layout: Layout, rotate: str, four: Ranks) -> None:
    for forward, step, said_forward, said_step in four(traffic, 4, layout, rotate, None):
        assert (forward, step) == (said_forward, said_step)


def test_a_window_spares_the_ring_most_of_its_way(four: Ranks) -> None:
    whole, windowed = (four(traffic, 4, "contiguous", "ring", window)[1] for window in (None, (16, 0)))
    assert windowed[0] == windowed[2] and windowed[1] == windowed[3]
    mask = 3 * 64
    assert (windowed[0] - mask) * 3 == whole[0] - mask


def test_zigzag_gives_every_rank_as_many_pairs_under_causality() -> None:
    for world in (2, 4, 8):
        pairs = [
            sum(
                sum(range(piece.start + 1, piece.start + piece.length + 1))
                for piece in pieces(rank, world, 64, "zigzag")
            )
            for rank in range(world)
        ]
        assert max(pairs) / min(pairs) < 1.03


def compiled(rank: int, world: int) -> list[float]:
    mesh = init_device_mesh("cpu", (world,))
    made, x = model(), split(drawn(2, 16, 16, name="x"), mesh, dim=1)
    parallelize_module(made, mesh, plan(made, ContextParallel()))

    def gradients(module: Any) -> list[Tensor]:
        made.zero_grad()
        output = module(x)
        output.square().sum().backward()
        return [output.detach(), *(parameter.grad.clone() for parameter in made.parameters())]  # pyright: ignore[reportOptionalMemberAccess]

    eager = gradients(made)
    under_compile = gradients(torch.compile(made, backend="eager"))
    recomputed = gradients(lambda x: checkpoint(made, x, use_reentrant=False))
    return [worst(one, other) for found in (under_compile, recomputed) for one, other in zip(found, eager, strict=True)]


@pytest.mark.slow
def test_under_compile_and_activation_checkpointing(two: Ranks) -> None:
    assert max(max(found) for found in two(compiled, 2)) < 1e-13


def second(rank: int, world: int, rotate: Any) -> float:
    """Second derivatives: of the sum over all ranks of the squares of the gradients by this rank's part."""
    mesh = init_device_mesh("cpu", (world,))
    whole = [drawn(1, 2, 8, 4, name=name).requires_grad_() for name in "qkv"]
    own = [split(tensor.detach(), mesh, dim=2).requires_grad_() for tensor in whole]
    found = []
    for tensors, attend in (
        (whole, partial(relattn.relative_attention, backend="dense")),
        (own, partial(context_parallel_attention, mesh=mesh, rotate=rotate, backend="dense")),
    ):
        first = torch.autograd.grad(attend(*tensors).pow(3).sum(), tensors, create_graph=True)
        found.append(torch.autograd.grad(sum(one.square().sum() for one in first), tensors))  # pyright: ignore[reportCallIssue, reportArgumentType]
    expected = [split(tensor, mesh, dim=2) for tensor in found[0]]
    return max(worst(one, other) for one, other in zip(found[1], expected, strict=True))


@pytest.mark.parametrize("rotate", ["all_gather", "ulysses"])
def test_second_derivatives(rotate: str, two: Ranks) -> None:
    assert max(two(second, 2, rotate)) < 1e-12


def replicated(rank: int, world: int) -> float:
    """The gradients of a model under DDP over the ranks of the context, off those of one process; by the largest."""
    mesh = init_device_mesh("cpu", (world,))
    x, alone, made = drawn(2, 16, 16, name="x"), model(), model()
    alone(x).square().sum().backward()
    parallelize_module(made, mesh, plan(made, ContextParallel()))
    under_ddp = DistributedDataParallel(made, process_group=mesh.get_group())
    (under_ddp(split(x, mesh, dim=1)).square().sum() * world).backward()  # DDP takes the mean
    found, expected = (
        torch.cat([parameter.grad.flatten() for parameter in one.parameters()])  # pyright: ignore[reportOptionalMemberAccess]
        for one in (made, alone)
    )
    return worst(found, expected)


def test_gradients_are_whole_under_ddp(two: Ranks) -> None:
    assert max(two(replicated, 2)) < 1e-13


def held_beside(rank: int, world: int, length: int) -> tuple[int, int]:
    """Bytes of a step of the ring beyond inputs, output and gradients; and those of a rank's keys and values."""
    mesh = init_device_mesh("cpu", (world,))
    most = 0
    with mock.patch.object(ring_schedule, "FEWEST", 64):
        for tokens in (64, length):  # the first warms up
            own = [torch.ones(1, 8, tokens, 64, requires_grad=True) for _ in range(3)]
            toward = torch.ones(1, 8, tokens, 64)
            before = current("cpu")
            reset_peak("cpu")
            found = context_parallel_attention(*own, is_causal=True, mesh=mesh, rotate="ring", backend="native")
            assert isinstance(found, Tensor)
            found.backward(toward)
            most = peak("cpu") - before - 4 * found.nbytes
    return most, own[1].nbytes + own[2].nbytes


@pytest.mark.slow
def test_a_ring_holds_little_of_what_belongs_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than all keys and values of one other, of which a ring without rounds holds three, with their gradients.

    In processes of their own, whose C library gives freed memory back: else what it keeps would count.
    """
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**16))
    ranks = Ranks(2)
    try:
        for beyond, keys_and_values in ranks(held_beside, 2, 4096):
            assert beyond < keys_and_values
    finally:
        ranks.stop()


def saved(rank: int, world: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (world,))
    made = model()
    parallelize_module(made, mesh, plan(made, ContextParallel()))
    for layer in made:
        fully_shard(layer, mesh=mesh)
    dcp.save(get_model_state_dict(made), checkpoint_id=folder)


def loaded(rank: int, world: int, folder: str) -> float:
    mesh = init_device_mesh("cpu", (world,))
    expected, made = model(), copy.deepcopy(model())
    for parameter in made.parameters():
        nn.init.zeros_(parameter)
    for layer in made:
        fully_shard(layer, mesh=mesh)
    state = get_model_state_dict(made)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(made, state)
    pairs = zip(made.parameters(), expected.parameters(), strict=True)
    return max((one.full_tensor() - other).abs().max().item() for one, other in pairs)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_checkpoint_of_four_is_read_by_two(four: Ranks, two: Ranks, tmp_path: Path) -> None:
    four(saved, 4, str(tmp_path))
    assert two(loaded, 2, str(tmp_path)) == [0.0, 0.0]
    state = {name: torch.zeros_like(parameter) for name, parameter in model().state_dict().items()}
    dcp.load(state, checkpoint_id=str(tmp_path))  # and by one
    assert all(torch.equal(tensor, state[name]) for name, tensor in model().state_dict().items())


def mixed(rank: int, world: int) -> tuple[float, float]:
    """The errors of bfloat16 under FSDP's mixed precision and of one process in bfloat16, against float64."""
    mesh = init_device_mesh("cpu", (world,))
    x = drawn(2, 32, 16, name="half")
    truth = model()(x)
    alone = model(torch.bfloat16)(x.bfloat16())
    made = model(torch.float32)
    parallelize_module(made, mesh, plan(made, ContextParallel()))
    for layer in made:
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    found = join(made(split(x.bfloat16(), mesh, dim=1)), mesh, dim=1)
    assert found.dtype == torch.bfloat16
    return (found.double() - truth).norm().item(), (alone.double() - truth).norm().item()


def test_mixed_precision_errs_as_one_process_does(two: Ranks) -> None:
    ratios = [ours / theirs for ours, theirs in two(mixed, 2)]
    assert 0.0 < max(ratios) <= 2.0


def refuses_a_cache(rank: int, world: int) -> str:
    mesh = init_device_mesh("cpu", (world,))
    made = model()
    parallelize_module(made, mesh, plan(made, ContextParallel()))
    try:
        made[0](torch.ones(1, 2, 16, dtype=torch.float64), cache=relattn.nn.KVCache())
    except relattn.UnsupportedError as error:
        return str(error)
    return "nothing"


def test_a_cache_is_refused(two: Ranks) -> None:
    assert two(refuses_a_cache, 2)[0] == (
        "cache: came to a layer whose sequences are split over processes (ContextParallel), each of which would hold "
        "keys of its own; decode with a layer that is not"
    )


def example(rank: int, world: int, arguments: list[str]) -> str:
    """What examples/several_devices.py prints, in the group that is there."""
    import contextlib
    import io

    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["several_devices.py", *arguments]),
        mock.patch("torch.distributed.init_process_group"),
        mock.patch("torch.distributed.destroy_process_group"),
        contextlib.redirect_stdout(printed),
    ):
        runpy.run_path(str(ROOT / "examples" / "several_devices.py"), run_name="__main__")
    return printed.getvalue()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("arguments", [[], ["--context", "2"], ["--heads", "2"]])
def test_example_on_two(arguments: list[str], two: Ranks) -> None:
    check_example(two(example, 2, arguments)[0])


@pytest.mark.slow
def test_example_of_all_ways_on_four(four: Ranks) -> None:
    check_example(four(example, 4, ["--context", "2", "--heads", "2"])[0])


def check_example(printed: str) -> None:
    assert "the parameters are those of one process, within " in printed
    assert float(printed.split()[-1]) < 1e-10


def test_parts_join_to_the_whole(two: Ranks) -> None:
    found = two(joined, 2)
    assert found == [True, True]


def joined(rank: int, world: int) -> bool:
    mesh = init_device_mesh("cpu", (world,))
    good = True
    for layout in ("zigzag", "contiguous"):
        for length in (1, 5, 8):
            whole = drawn(3, length, name=length)
            part = split(whole, mesh, dim=-1, layout=layout)
            good &= torch.equal(join(part, mesh, dim=-1, layout=layout, length=length), whole)
            good &= bool((part.shape[1] * world) % (2 * world if layout == "zigzag" else world) == 0)
    return good and np.isfinite(part.numpy()).all()

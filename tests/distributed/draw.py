"""Random calls of attention for ranks to share: the whole tensors, and what each rank is given of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import relattn
from relattn import attention_and_lse
from relattn.distributed import context_parallel_attention_and_lse, join, ring_schedule, split
from relattn.distributed.parts import multiple
from tests import seeds
from tests.oracle import assert_within_budget, max_error
from tests.oracle.budget import EPS
from tests.peers.compare import longest_sum, outcomes

WIDTH, HEADS = 6, 4
AXIS_OF_SEQUENCE = {
    "attn_mask": -2,
    "sinks": -1,
    "key_bias": -1,
    "key_mask": -1,
    "query_position": -1,
    "key_position": -1,
}
"""Where the rank's part lies in a tensor that has one."""

Encodings = dict[str, Callable[[int], nn.Module | None]]

ENCODINGS: Encodings = {
    "none": lambda length: None,
    "relative, by head": lambda length: relattn.RelativeEmbedding(WIDTH, length, num_heads=HEADS),
    "relative": lambda length: relattn.RelativeEmbedding(WIDTH, length),
    "Shaw": lambda length: relattn.ShawEmbedding(WIDTH, 5),
    "T5": lambda length: relattn.T5Bias(HEADS, num_buckets=8, max_distance=20),
    "ALiBi": lambda length: relattn.AlibiBias(HEADS),
    "KERPLE": lambda length: relattn.KerpleBias(HEADS),
    "Sandwich": lambda length: relattn.SandwichBias(HEADS),
    "rotary": lambda length: relattn.RotaryEmbedding(WIDTH),
    "Transformer-XL": lambda length: relattn.TransformerXLEmbedding(HEADS, WIDTH),
    "key and query": lambda length: relattn.KeyQueryEmbedding(WIDTH, length, num_heads=HEADS),
    "DeBERTa": lambda length: relattn.DisentangledEmbedding(HEADS, WIDTH, max_distance=16),
    "Shaw + ALiBi": lambda length: relattn.ShawEmbedding(WIDTH, 5) + relattn.AlibiBias(HEADS),
    "rotary + T5": lambda length: relattn.RotaryEmbedding(WIDTH) + relattn.T5Bias(HEADS),
    "Transformer-XL + relative": lambda length: (
        relattn.TransformerXLEmbedding(HEADS, WIDTH) + relattn.RelativeEmbedding(WIDTH, length)
    ),
    "y and x": lambda length: (
        relattn.RelativeEmbedding(WIDTH, length).on("y") + relattn.ShawEmbedding(WIDTH, 3).on("x")
    ),
    "grid": lambda length: relattn.GridBias((length // 4, 4), HEADS),
}
ON_GRIDS = ("y and x", "grid")
KINDS = list(product(ENCODINGS, ("ring", "all_gather", "ulysses")))
UNCLIPPED = ("relative, by head", "relative", "key and query", "Transformer-XL + relative")


@dataclass
class Drawn:
    """A call: tensors that have gradients, those that have none, and the rest of the arguments.

    encoding: makes the module of `ENCODINGS`, whose parameters are among the tensors, as "encoding.NAME". fewest: what
    the ring takes in the place of `ring_schedule.FEWEST`, so that a short sequence has several rounds.
    """

    world: int
    layout: str
    rotate: str
    name: str
    lengths: tuple[int, int]
    fewest: int
    moved: dict[str, Tensor] = field(default_factory=dict)
    fixed: dict[str, Tensor] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def encoding(self) -> nn.Module | None:
        return ENCODINGS[self.name](max(self.lengths))

    def __str__(self) -> str:
        options = {
            name: value for name, value in self.options.items() if name not in ("query_position", "key_position")
        }
        given = sorted((*self.moved, *self.fixed))
        return f"{self.name}, {self.layout}, {self.rotate}, {self.lengths}, {self.fewest}, {given}, {options}"


def drawn(world: int, number: int) -> Drawn:
    """The call of that number: the same for all ranks. Encodings meet each way to rotate, one after another."""
    rng = seeds.generator("context parallel", world, number)
    name, rotate = KINDS[number % len(KINDS)]
    layout = str(rng.choice(["zigzag", "contiguous"]))
    unit = 8 if name in ON_GRIDS else multiple(world, layout)
    queries = unit * int(rng.integers(2, 6))
    keys = queries if rng.random() < 0.6 or name in ON_GRIDS else unit * int(rng.integers(2, 6))
    batch, key_heads = int(rng.integers(1, 3)), int(rng.choice([1, 2, 4]))
    if rotate == "ulysses" and key_heads % world:
        key_heads = 4
    call = Drawn(world, layout, rotate, name, (queries, keys), fewest=int(rng.choice([1, 3, 4, 1024])))
    value_width = int(rng.choice([WIDTH, 5])) if name not in ("Shaw", "Shaw + ALiBi", "y and x") else WIDTH

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    call.moved = {
        "query": normal(batch, HEADS, queries, WIDTH),
        "key": normal(batch, key_heads, keys, WIDTH),
        "value": normal(batch, key_heads, keys, value_width),
    }
    encoding = call.encoding()
    if encoding is not None:
        call.moved |= {f"encoding.{one}": normal(*p.shape).abs() * 0.5 + 0.1 for one, p in encoding.named_parameters()}
    call.options["enable_gqa"] = key_heads != HEADS
    if rng.random() < 0.5:
        call.options["is_causal"] = True
    if rng.random() < 0.4:
        call.options["window"] = (
            int(rng.integers(1, queries + 1)),
            None if rng.random() < 0.5 else int(rng.integers(0, 5)),
        )
    _draw_positions(call, rng)
    _draw_masks(call, rng, batch)
    if rng.random() < 0.3:
        call.options["softcap"] = 2.0
    if rng.random() < 0.3:
        call.moved["key_bias"] = normal(batch, HEADS, keys).cumsum(-1) if rng.random() < 0.5 else normal(1, 1, keys)
    if rng.random() < 0.3:
        call.moved["sinks"] = normal(HEADS) if rng.random() < 0.5 else normal(batch, HEADS, queries)
    return call


def _draw_positions(call: Drawn, rng: np.random.Generator) -> None:
    queries, keys = call.lengths
    if call.name in ON_GRIDS:
        where = relattn.grid(queries // 4, 4)
        call.options |= {"query_position": where, "key_position": where}
    elif call.name not in UNCLIPPED and rng.random() < 0.3:
        call.options |= {"query_position": int(rng.integers(-5, 6)), "key_position": int(rng.integers(-5, 6))}
    elif rng.random() < 0.2:
        longest = max(queries, keys)
        call.fixed["query_position"] = torch.from_numpy(rng.integers(0, longest, size=queries))
        call.fixed["key_position"] = torch.from_numpy(rng.integers(0, longest, size=keys))


def _draw_masks(call: Drawn, rng: np.random.Generator, batch: int) -> None:
    queries, keys = call.lengths
    if rng.random() < 0.4:
        call.fixed["key_mask"] = torch.from_numpy(rng.random((batch, keys)) < 0.7)
    if rng.random() < 0.3:
        ids = [torch.from_numpy(np.sort(rng.integers(0, 3, size=(batch, length)))) for length in call.lengths]
        call.fixed |= {"query_segments": ids[0], "key_segments": ids[1]}
    if call.rotate != "ulysses" and rng.random() < 0.3:
        shape = tuple(size if rng.random() < 0.7 else 1 for size in (batch, HEADS, queries, keys))
        if rng.random() < 0.5:
            call.fixed["attn_mask"] = torch.from_numpy(rng.random(shape) < 0.8)
        else:
            call.moved["attn_mask"] = torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def whole(call: Drawn, tensors: dict[str, Tensor], backend: str) -> Tensor:
    """O and lse of one process, in a row."""
    return _attend(call, tensors, call.fixed, attention_and_lse, {"backend": backend})


def shared(call: Drawn, mesh: DeviceMesh, tensors: dict[str, Tensor]) -> Tensor:
    """The same from the parts of all ranks, joined; the gradients are those by the whole tensors."""

    def part(name: str, tensor: Tensor) -> Tensor:
        if name in ("query", "key", "value"):
            return split(tensor, mesh, dim=-2, layout=call.layout)
        axis = AXIS_OF_SEQUENCE.get(name, -1)
        shared = name == "attn_mask" and tensor.shape[axis] == 1
        if shared or name.startswith("encoding.") or (name == "sinks" and tensor.dim() == 1):
            return tensor
        return split(tensor, mesh, dim=axis, layout=call.layout)

    own = {name: part(name, _Replicated.apply(tensor, mesh)) for name, tensor in tensors.items()}  # pyright: ignore[reportArgumentType]
    fixed = {name: part(name, tensor) for name, tensor in call.fixed.items()}
    how = {"mesh": mesh, "layout": call.layout, "rotate": call.rotate}
    answer = _attend(call, own, fixed, context_parallel_attention_and_lse, how)
    return join(answer, mesh, dim=2, layout=call.layout, length=call.lengths[0])


def _attend(
    call: Drawn, tensors: dict[str, Tensor], fixed: dict[str, Tensor], attend: Any, how: dict[str, Any]
) -> Tensor:
    encoding, given = call.encoding(), {**tensors, **fixed}
    query, key, value = (given.pop(name) for name in ("query", "key", "value"))
    if "query_segments" in given:
        given["segment_ids"] = given.pop("query_segments"), given.pop("key_segments")
    parameters = {
        name.removeprefix("encoding."): given.pop(name) for name in list(given) if name.startswith("encoding.")
    }
    if encoding is None:
        output, lse = attend(query, key, value, **given, **call.options, **how)
    else:
        encoding.to(query.dtype)
        with nn.utils.stateless._reparametrize_module(encoding, parameters):
            output, lse = attend(query, key, value, encoding=encoding, **given, **call.options, **how)
    return torch.cat([output, lse.masked_fill(lse == -torch.inf, 0.0).to(output.dtype).unsqueeze(-1)], -1)


class _Replicated(torch.autograd.Function):
    """What all ranks hold; its gradient is the mean over the ranks of what each has, N times its own part, for `join`
    gives every rank the gradients of all."""

    @staticmethod
    def forward(ctx, tensor: Tensor, mesh: DeviceMesh) -> Tensor:
        ctx.mesh = mesh
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = gradient.contiguous()
        torch.distributed.all_reduce(total, group=ctx.mesh.get_group())
        return total / ctx.mesh.size(), None


def mesh_of(world: int) -> DeviceMesh:
    """The mesh of all ranks."""
    return init_device_mesh("cpu", (world,))


def check(call: Drawn, dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32)) -> None:
    """All ranks together compute what one process does, in each of these dtypes.

    The truth is the reference in float64; the plain formula is `dense` of one process. Every gradient but those by
    values and sinks sums the terms that the query's does, dS times numbers of size one: where such a sum cancels, as by
    the softmax's invariance, the query's size is its magnitude.
    """
    mesh, terms = mesh_of(call.world), longest_sum(call.moved["query"].shape[0] * HEADS, *call.lengths, 0, 2 * WIDTH)
    truth = outcomes(lambda tensors: whole(call, tensors, "reference"), call.moved, torch.float64)
    plain = outcomes(lambda tensors: whole(call, tensors, "dense"), call.moved, torch.float32)
    for dtype in dtypes:
        name_of_dtype = str(dtype).removeprefix("torch.")
        with mock.patch.object(ring_schedule, "FEWEST", call.fewest):
            ours = outcomes(lambda tensors: shared(call, mesh, tensors), call.moved, dtype)
        for name, expected in truth.items():
            own = np.abs(expected).max()
            magnitude = own if name in ("output", "value", "sinks") else max(own, np.abs(truth["query"]).max())
            plain_error = max_error(plain[name], expected) * EPS[name_of_dtype] / EPS["float32"]
            assert_within_budget(ours[name], expected, plain_error, terms, name_of_dtype, name, magnitude=magnitude)

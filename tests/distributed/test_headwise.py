"""HeadwiseParallel: outputs, gradients and steps of a layer whose heads several processes share are those of one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from relattn.distributed import HeadwiseParallel, plan
from tests.distributed.ranks import Ranks
from tests.distributed.split_heads import ENCODINGS, assert_close, made, mesh, placed, whole


def steps(model: nn.Module, x: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The outputs of three steps, the gradients of the first, and the parameters after them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, eps=0.1)  # a gradient of 1e-16 that should be 0 stays so
    outputs, found = [], {}
    for number in range(3):
        x = x.detach().requires_grad_()
        output = model(x)
        output.square().mean().backward()
        if number == 0:
            assert x.grad is not None
            found["the input's gradient"] = x.grad
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None, name
                assert placed(parameter.grad) == placed(parameter.data), name
                found[f"{name}'s gradient"] = whole(parameter.grad).clone()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output.detach())
    return outputs, found | {name: whole(parameter.detach()) for name, parameter in model.named_parameters()}


def as_one_process(rank: int, world: int, name: str, num_kv_heads: int) -> None:
    model, x = made(name, num_kv_heads)
    expected_outputs, expected = steps(model, x)
    split, x = made(name, num_kv_heads)
    names = list(split.state_dict())
    parallelize_module(split, mesh(world), plan(split))
    assert list(split.state_dict()) == names
    outputs, found = steps(split, x)
    for number, (ours, theirs) in enumerate(zip(outputs, expected_outputs, strict=True)):
        assert_close(ours, theirs, f"output {number}")
    assert found.keys() == expected.keys()
    for what, tensor in expected.items():
        assert_close(found[what], tensor, what)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", ENCODINGS)
def test_two_processes_are_as_one(two: Ranks, name: str) -> None:
    two(as_one_process, 2, name, 2)


@pytest.mark.one_in(24)
@pytest.mark.parametrize("name", ENCODINGS)
def test_four_processes_are_as_one(four: Ranks, name: str) -> None:
    four(as_one_process, 4, name, 4)


def placements(rank: int, name: str) -> dict[str, tuple[str, ...]]:
    encoding = ENCODINGS[name]()
    parallelize_module(encoding, mesh(2), HeadwiseParallel())
    return {name: placed(parameter.data) for name, parameter in encoding.named_parameters()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("relative", {"relative_keys": Replicate()}),
        ("relative, by head", {"relative_keys": Shard(0)}),
        ("Shaw, by head", {"relative_keys": Shard(0), "relative_values": Shard(0)}),
        ("T5", {"bias": Shard(1)}),
        ("ALiBi", {}),
        ("ALiBi, learned", {"slopes": Shard(0)}),
        ("KERPLE", {"r1": Shard(0), "r2": Shard(0)}),
        ("Transformer-XL", {"pos_bias_u": Shard(0), "pos_bias_v": Shard(0), "linear_pos.weight": Shard(0)}),
        ("key and query, by head", {"relative_embeddings": Shard(0)}),
        ("grid", {"bias": Shard(1)}),
        ("grid, by rows and head", {"relative_keys": Shard(0)}),
        (
            "DeBERTa",
            {
                "relative_embeddings": Replicate(), "pos_key_proj.weight": Shard(0), "pos_key_proj.bias": Shard(0),
                "pos_query_proj.weight": Shard(0), "pos_query_proj.bias": Shard(0),
            },
        ),
        (
            "log grid",
            {
                "function.mlp.0.weight": Replicate(), "function.mlp.0.bias": Replicate(),
                "function.mlp.2.weight": Shard(0),
            },
        ),
        (
            "y and x",
            {
                "operands.0.encoding.relative_keys": Shard(0), "operands.1.encoding.relative_keys": Replicate(),
                "operands.1.encoding.relative_values": Replicate(),
            },
        ),
    ],
)  # fmt: skip
def test_what_each_process_holds(two: Ranks, name: str, expected: dict[str, object]) -> None:
    for found in two(placements, name):
        assert found == {name: (str(placement),) for name, placement in expected.items()}

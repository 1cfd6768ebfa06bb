"""What HeadwiseParallel cannot split: one sentence, alike on every rank, before anything is changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import relattn
from relattn import relative_attention
from relattn.distributed import HeadwiseParallel
from relattn.nn import RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from tests.distributed.ranks import Ranks
from tests.distributed.refused import HEADS, LENGTH, WIDTH, inputs, layer, said, spread


def parallelized(rank: int, case: str) -> str:
    mesh = init_device_mesh("cpu", (2,))
    if case == "another module":
        return said(lambda: parallelize_module(nn.Linear(4, 4), mesh, HeadwiseParallel()))
    if case == "a layer of Conformers":
        return said(lambda: parallelize_module(RelPositionMultiHeadedAttention(8, 2), mesh, HeadwiseParallel()))
    if case == "a mesh of two dimensions":
        both = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "heads"))
        return said(lambda: HeadwiseParallel()._apply(layer(), both))
    if case == "heads":
        attention = RelativeMultiheadAttention(9, 3)
        return said(lambda: parallelize_module(attention, mesh, HeadwiseParallel()))
    if case == "heads of keys":
        return said(lambda: parallelize_module(layer(num_kv_heads=1), mesh, HeadwiseParallel()))
    if case == "heads of an encoding":
        encoding = relattn.RotaryEmbedding(WIDTH) + relattn.T5Bias(3)
        return said(lambda: parallelize_module(encoding, mesh, HeadwiseParallel()))
    if case == "split already":
        attention = layer()
        parallelize_module(attention.v_proj, mesh, ColwiseParallel())
        sentence = said(lambda: parallelize_module(attention, mesh, HeadwiseParallel()))
        assert not isinstance(attention.q_proj.weight, DTensor)
        return sentence
    if case == "an encoding that somebody else spread":
        encoding = relattn.T5Bias(HEADS)
        spread(encoding, Shard(0))
        return said(lambda: parallelize_module(encoding, mesh, HeadwiseParallel()))
    assert case == "two meshes"
    encoding = relattn.RelativeEmbedding(WIDTH, LENGTH)
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "heads"))["heads"]
    parallelize_module(encoding, mesh, HeadwiseParallel())
    return said(lambda: parallelize_module(encoding, alone, HeadwiseParallel()))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (
            "another module",
            "TypeError: HeadwiseParallel: got Linear; expected a RelativeMultiheadAttention or a RelativeEncoding; "
            "relattn.distributed.plan(model) names the layers of a model",
        ),
        (
            "a layer of Conformers",
            "TypeError: HeadwiseParallel: got RelPositionMultiHeadedAttention; expected a RelativeMultiheadAttention "
            "or a RelativeEncoding; one with TransformerXLEmbedding(..., interleaved=True) has the same equation and "
            "weights",
        ),
        (
            "a mesh of two dimensions",
            "UnsupportedError: mesh: got 2 dimensions with the dimensions 'data', 'heads'; expected one, over which "
            "the heads are split; give a part of the mesh, as mesh['heads']",
        ),
        (
            "heads",
            "ValueError: num_heads: got 3 on a mesh of 2 processes; expected a multiple of 2, as many heads for each; "
            "take a smaller mesh",
        ),
        (
            "heads of keys",
            "ValueError: num_kv_heads: got 1 on a mesh of 2 processes; expected a multiple of 2, as many heads for "
            "each; take a smaller mesh",
        ),
        (
            "heads of an encoding",
            "ValueError: T5Bias num_heads: got 3 on a mesh of 2 processes; expected a multiple of 2, as many heads for "
            "each; take a smaller mesh",
        ),
        (
            "split already",
            "UnsupportedError: HeadwiseParallel: got a RelativeMultiheadAttention whose v_proj.weight is a DTensor "
            "already; expected ordinary parameters; split the heads first, and once, and call fully_shard afterwards",
        ),
        (
            "an encoding that somebody else spread",
            "UnsupportedError: HeadwiseParallel: got a T5Bias whose bias is a DTensor already; expected ordinary "
            "parameters; split the heads first, and once, and call fully_shard afterwards",
        ),
        (
            "two meshes",
            "UnsupportedError: HeadwiseParallel: got a RelativeEmbedding that another mesh has split; expected the "
            "same mesh for all layers that share an encoding",
        ),
    ],
)
def test_what_headwise_parallel_refuses(two: Ranks, case: str, expected: str) -> None:
    assert two(parallelized, case) == [expected, expected]


def with_a_function_that_learns(rank: int) -> str:
    slopes = torch.randn(HEADS, 1, requires_grad=True)
    encoding = relattn.FunctionBias(lambda offsets: slopes * offsets, HEADS)
    parallelize_module(encoding, init_device_mesh("cpu", (2,)), HeadwiseParallel())
    query, key, value = inputs(HEADS // 2)
    return said(lambda: relative_attention(query, key, value, encoding=encoding))


def test_a_function_that_learns_behind_ones_back_is_refused(two: Ranks) -> None:
    assert set(two(with_a_function_that_learns)) == {
        "UnsupportedError: FunctionBias function: got one that is no Module and learns, while processes share the "
        "heads; expected a Module, whose gradients relattn.distributed.HeadwiseParallel adds up"
    }

"""HeadwiseParallel beside all else: a user's encoding, decoding, frozen parameters, fully_shard, saved files."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import relattn
from relattn.distributed import HeadwiseParallel, plan
from relattn.nn import KVCache
from relattn.positions.positions import Positions
from tests import seeds
from tests.distributed.ranks import Ranks
from tests.distributed.split_heads import HEADS, LENGTH, WIDTH, assert_close, made, mesh, whole


class Slopes(relattn.RelativeEncoding):
    """A user's own: a slope for each head, and one number for all."""

    head_axes = MappingProxyType({"slopes": 1})

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.slopes, self.shared = nn.Parameter(torch.randn(1, HEADS)), nn.Parameter(torch.randn(()))

    def terms(self, query: Tensor, key: Tensor, positions: Positions) -> relattn.ScoreTerms:
        offsets = positions.span.offsets(query.device).to(query.dtype)
        bias = (self.slopes.t() * offsets).tanh() * self.shared
        assert bias.shape[0] == self.num_heads
        return relattn.ScoreTerms(bias=relattn.OffsetTable(bias, positions.span.first, "error"))


def own_encoding(rank: int) -> None:
    """An encoding without a layer, over queries of the process's heads."""
    seeds.start_all("own encoding")
    encoding = Slopes().double()
    inputs = [torch.randn(2, HEADS, LENGTH, WIDTH, dtype=torch.float64) for _ in range(3)]
    expected = relattn.relative_attention(inputs[0], inputs[1], inputs[2], encoding=encoding)
    gradients = torch.autograd.grad(expected.square().sum(), list(encoding.parameters()))
    parallelize_module(encoding, mesh(2), HeadwiseParallel())
    heads = slice(rank * HEADS // 2, (rank + 1) * HEADS // 2)
    query, key, value = (tensor[:, heads] for tensor in inputs)
    output = relattn.relative_attention(query, key, value, encoding=encoding)
    assert_close(output, expected[:, heads], "output")
    found = torch.autograd.grad(output.square().sum(), list(encoding.parameters()))
    for name, one, other in zip(("slopes", "shared"), found, gradients, strict=True):
        assert_close(whole(one), other, name)


def test_an_encoding_of_ones_own(two: Ranks) -> None:
    two(own_encoding)


def dropped(rank: int) -> None:
    """Dropout, with processes that are seeded alike."""
    model, x = made("Shaw", 2)
    layer = model.layers[0]
    layer.dropout, layer.backend = 0.5, "blocks"
    torch.manual_seed(seeds.seed("headwise dropout"))
    expected = layer(x)
    kept = layer(x)
    assert (kept - expected).abs().max() > 0.1  # another draw
    parallelize_module(layer, mesh(2), HeadwiseParallel())
    torch.manual_seed(seeds.seed("headwise dropout"))
    assert_close(layer(x), expected, "output")


def test_dropout_drops_what_one_process_drops(two: Ranks) -> None:
    two(dropped)


def decoded(rank: int, name: str) -> None:
    """Token by token with a cache, whose rows are of the process's heads."""
    model, x = made(name, 2)
    layer = model.layers[0]
    with torch.no_grad():
        expected = layer(x, is_causal=True)
        parallelize_module(layer, mesh(2), HeadwiseParallel())
        cache = KVCache()
        steps = [layer(x[:, place : place + 1], cache=cache) for place in range(LENGTH)]
    assert_close(torch.cat(steps, 1), expected, "output")


@pytest.mark.parametrize("name", ["a sum", "Transformer-XL", "Sandwich"])
def test_decoding(two: Ranks, name: str) -> None:
    two(decoded, name)


def split_twice(rank: int) -> None:
    encoding = relattn.RelativeEmbedding(WIDTH, LENGTH)
    on_both = encoding + encoding.on("y")
    parallelize_module(encoding, mesh(2), HeadwiseParallel())
    first = encoding.relative_keys
    parallelize_module(on_both, mesh(2), HeadwiseParallel())
    parallelize_module(encoding, mesh(2), HeadwiseParallel())
    assert encoding.relative_keys is first and isinstance(first, nn.Parameter) and isinstance(first.data, DTensor)
    assert [name for name, _ in on_both.named_parameters()] == ["operands.0.relative_keys"]


def test_what_is_shared_is_split_once(two: Ranks) -> None:
    two(split_twice)


def tied(rank: int) -> None:
    encoding = relattn.ShawEmbedding(WIDTH, 3)
    encoding.relative_values = encoding.relative_keys
    parallelize_module(encoding, mesh(2), HeadwiseParallel())
    assert encoding.relative_values is encoding.relative_keys and isinstance(encoding.relative_keys.data, DTensor)


def test_a_parameter_of_two_names_stays_one(two: Ranks) -> None:
    two(tied)


def frozen(rank: int) -> None:
    model, x = made("T5", 2)
    for layer in model.layers:
        layer.requires_grad_(False)
    parallelize_module(model, mesh(2), plan(model))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model(x).requires_grad


def test_what_is_frozen_stays_so(two: Ranks) -> None:
    two(frozen)


def of_the_first(rank: int) -> None:
    """Every process starts with numbers of its own, and goes on with the first's."""
    model, _ = made("a sum", 2)
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)
    parallelize_module(model, mesh(2), plan(model))
    for name, parameter in model.named_parameters():
        assert torch.equal(whole(parameter.detach()), first[name]), name


def test_all_go_on_with_the_numbers_of_the_first(two: Ranks) -> None:
    two(of_the_first)


def beside_data(rank: int) -> None:
    """fully_shard over pairs of processes that have the same heads, which see other data."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "heads"))
    model, x = made("a sum", 2)
    data = torch.randn(2, *x.shape, dtype=torch.float64)
    (model(data[0]).square().mean() + model(data[1]).square().mean()).div(2).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    split, _ = made("a sum", 2)
    parallelize_module(split, both["heads"], plan(split))
    fully_shard(split, mesh=both["data"])
    split(data[both["data"].get_local_rank()]).square().mean().backward()
    for name, parameter in split.named_parameters():
        gradient, theirs = parameter.grad, expected[name]
        assert gradient is not None and theirs is not None
        assert_close(whole(gradient), theirs, name)


def test_fully_shard_beside_it(four: Ranks) -> None:
    four(beside_data)


def saved(rank: int, folder: str) -> None:
    model, _ = made("a sum", 4)
    parallelize_module(model, mesh(4), plan(model))
    save(model.state_dict(), checkpoint_id=folder)


def loaded(rank: int, folder: str) -> None:
    expected, _ = made("a sum", 4)
    model, _ = made("a sum", 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    parallelize_module(model, mesh(2), plan(model))
    load(model.state_dict(), checkpoint_id=folder)
    for name, parameter in model.named_parameters():
        assert torch.equal(whole(parameter.detach()), expected.get_parameter(name)), name


def test_what_four_save_two_and_one_load(two: Ranks, four: Ranks, tmp_path: Path) -> None:
    four(saved, str(tmp_path))
    two(loaded, str(tmp_path))
    expected, _ = made("a sum", 4)
    state = {name: torch.zeros_like(tensor) for name, tensor in expected.state_dict().items()}
    load(state, checkpoint_id=tmp_path, no_dist=True)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(state[name], tensor), name

"""What would be answered wrongly, or in a riddle, where devices share the work: one sentence, alike on every rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import relattn
from relattn import relative_attention
from relattn.backends.select import BACKENDS
from relattn.checks.dtensors import check_split_alike
from tests.distributed.ranks import Ranks
from tests.distributed.refused import EMBED, HEADS, LENGTH, WIDTH, inputs, layer, said, spread


def under_context_parallel(rank: int, backend: str) -> tuple[str, str, str]:
    query, key, value = inputs()
    mesh = init_device_mesh("cpu", (2,))
    before = said(lambda: relative_attention(query, key, value))
    with context_parallel(mesh, buffers=[query, key, value], buffer_seq_dims=[2, 2, 2]):
        inside = said(lambda: relative_attention(query, key, value, backend=backend))
    return before, inside, said(lambda: relative_attention(query, key, value))


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_torchs_context_parallel_is_refused(two: Ranks, backend: str) -> None:
    for before, inside, after in two(under_context_parallel, backend):
        assert inside == (
            "UnsupportedError: relative_attention: was called under torch's context_parallel, where each process would "
            "attend to its own part of the sequence alone; call relattn.distributed.context_parallel_attention outside "
            "of it, on parts that relattn.distributed.split makes"
        )
        assert before == after == ""


def layer_under_context_parallel(rank: int) -> str:
    x, attention = torch.randn(2, LENGTH, EMBED), layer()
    with context_parallel(init_device_mesh("cpu", (2,)), buffers=[x], buffer_seq_dims=[1]):
        return said(lambda: attention(x))


def test_layers_refuse_torchs_context_parallel(two: Ranks) -> None:
    for sentence in two(layer_under_context_parallel):
        assert sentence.startswith("UnsupportedError: relative_attention: was called under torch's context_parallel, ")


def given_dtensors(rank: int, name: str) -> str:
    mesh = init_device_mesh("cpu", (2,))
    names = ("query", "key", "value")
    query, key, value = [
        distribute_tensor(tensor, mesh, [Shard(2)]) if name == one else tensor
        for one, tensor in zip(names, inputs(), strict=True)
    ]
    return said(lambda: relative_attention(query, key, value))


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_dtensors_are_refused(two: Ranks, name: str) -> None:
    assert set(two(given_dtensors, name)) == {
        f"TypeError: {name}: got a DTensor (S(2) over 2 devices); expected an ordinary tensor; give .to_local(), this "
        "process's part: to relattn.distributed.context_parallel_attention where the sequence is split, or with an "
        "encoding under relattn.distributed.HeadwiseParallel where the heads are"
    }


SPREAD: dict[str, tuple[Callable[[], relattn.RelativeEncoding], str]] = {
    "relative": (lambda: relattn.RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS), "relative_keys"),
    "T5": (lambda: relattn.T5Bias(HEADS), "T5Bias bias"),
    "KERPLE": (lambda: relattn.KerpleBias(HEADS), "KerpleBias r1"),
    "Transformer-XL": (lambda: relattn.TransformerXLEmbedding(HEADS, WIDTH), "TransformerXLEmbedding pos_bias_u"),
    "DeBERTa": (
        lambda: relattn.DisentangledEmbedding(HEADS, WIDTH),
        "DisentangledEmbedding relative_embeddings",
    ),
    "log grid": (lambda: relattn.LogGridBias((3, 4), HEADS), "LogGridBias function.mlp.0.weight"),
}


def given_spread_parameters(rank: int, name: str, sharded: bool) -> str:
    encoding = SPREAD[name][0]()
    spread(encoding, Shard(0) if sharded else Replicate())
    where = relattn.grid(3, 4) if name == "log grid" else 0
    query, key, value = inputs()
    return said(
        lambda: relative_attention(query, key, value, encoding=encoding, query_position=where, key_position=where)
    )


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("name", SPREAD)
def test_parameters_that_somebody_else_spread_are_refused(two: Ranks, name: str, sharded: bool) -> None:
    placed = "S(0)" if sharded else "R"
    assert set(two(given_spread_parameters, name, sharded)) == {
        f"TypeError: {SPREAD[name][1]}: got a DTensor ({placed} over 2 devices); expected an ordinary tensor; split "
        "the encoding's heads with relattn.distributed.HeadwiseParallel, or let fully_shard wrap the layer that it "
        "belongs to"
    }


def spread_keys(rank: int) -> str:
    class Turned(relattn.RelativeEncoding):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.randn(WIDTH))

        def prepare_keys(self, key, key_position):
            return key * self.turn

        def terms(self, query, key, positions):
            return relattn.ScoreTerms()

    encoding = Turned()
    spread(encoding, Shard(0))
    query, key, value = inputs()
    return said(lambda: relative_attention(query, key, value, encoding=encoding))


def test_keys_of_spread_parameters_are_refused(two: Ranks) -> None:
    for sentence in two(spread_keys):
        assert sentence.startswith("TypeError: Turned turn: got a DTensor (S(0) over 2 devices); expected an ordinary ")


def with_some_heads(rank: int, name: str, heads: int) -> str:
    made: dict[str, relattn.RelativeEncoding] = {
        "relative": relattn.RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS),
        "T5": relattn.T5Bias(HEADS),
    }
    query, key, value = inputs(heads)
    return said(lambda: relative_attention(query, key, value, encoding=made[name]))


ELSEWHERE = "; where the heads are split over devices, split the encoding's with relattn.distributed.HeadwiseParallel"


@pytest.mark.parametrize("name", ["relative", "T5"])
@pytest.mark.parametrize(("heads", "hinted"), [(2, True), (3, False), (8, False)])
def test_heads_may_be_elsewhere(two: Ranks, name: str, heads: int, hinted: bool) -> None:
    first = {
        "relative": f"ShapeError: relative_keys: got 4 heads ([4, 23, 6]); expected {heads}, the query's; make the "
        f"encoding for {heads} heads, or for one head shared by all",
        "T5": f"ShapeError: T5Bias num_heads: got 4; expected {heads}, the heads of query [2, {heads}, 12, 6]; make it "
        f"with num_heads={heads}",
    }
    assert set(two(with_some_heads, name, heads)) == {first[name] + (ELSEWHERE if hinted else "")}


def test_one_process_has_no_heads_elsewhere() -> None:
    sentence = with_some_heads(0, "T5", 2)
    assert sentence.startswith("ShapeError: T5Bias num_heads: got 4; expected 2, ")
    assert "HeadwiseParallel" not in sentence


def split_without_its_encoding(rank: int) -> dict[str, str]:
    mesh, attention = init_device_mesh("cpu", (2,)), layer()
    before = said(lambda: check_split_alike(attention, attention.q_proj))
    columns = dict.fromkeys(("q_proj", "k_proj", "v_proj"), ColwiseParallel())
    parallelize_module(attention, mesh, {**columns, "out_proj": RowwiseParallel()})

    def without_gradients() -> None:
        with torch.no_grad():
            check_split_alike(attention, attention.q_proj)

    found = {
        "before": before,
        "split": said(lambda: check_split_alike(attention, attention.q_proj)),
        "no gradients": said(without_gradients),
    }
    attention.encoding.requires_grad_(False)  # pyright: ignore[reportOptionalMemberAccess]
    return found | {"frozen": said(lambda: check_split_alike(attention, attention.q_proj))}


def test_a_shared_table_beside_split_projections_is_refused(two: Ranks) -> None:
    for found in two(split_without_its_encoding):
        assert found == {
            "before": "",
            "split": "TypeError: RelativeMultiheadAttention encoding.relative_keys: got an ordinary parameter in a "
            "layer whose projections are split over devices, where each process would give it the gradient of its own "
            "heads alone; expected a DTensor; split the whole layer with relattn.distributed.HeadwiseParallel",
            "no gradients": "",
            "frozen": "",
        }


def on_copies(rank: int) -> str:
    """Projections that every process has whole."""
    mesh, attention = init_device_mesh("cpu", (2,)), layer()
    spread(attention.q_proj, Replicate())
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "heads"))["heads"]
    attention.k_proj.weight = nn.Parameter(distribute_tensor(attention.k_proj.weight.detach(), alone, [Shard(0)]))
    assert isinstance(attention.q_proj.weight, DTensor) and attention.q_proj.weight.device_mesh == mesh
    return said(lambda: check_split_alike(attention, attention.q_proj)) + said(
        lambda: check_split_alike(attention, attention.k_proj)
    )


def test_projections_that_are_not_split_are_not_refused(two: Ranks) -> None:
    assert two(on_copies) == ["", ""]

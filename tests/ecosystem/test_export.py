"""torch.export with dynamic lengths: the exported program gives the module's numbers at lengths that it never saw."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import UnsupportedError
from tests.bad_input.refusal import refused
from tests.contract.calls import assert_equal
from tests.ecosystem.layers import (
    LENGTHS,
    LONGEST,
    ONE,
    Attention,
    attention,
    every_backend,
    every_traced_encoding_slowly,
    inputs,
    of_no_axis,
)

pytestmark = pytest.mark.graphs

pytest_plugins = ["tests.contract.fresh"]


def exported(module: Attention, given: list[Tensor], **more: Any) -> torch.export.ExportedProgram:
    queries, keys = (torch.export.Dim(which, min=2, max=LONGEST) for which in ("queries", "keys"))
    of_lengths = {"query": {1: queries}, "key": {1: keys}, **{name: {1: keys} for name in more}}
    return torch.export.export(module, tuple(given), more, dynamic_shapes=of_lengths)


def keep(keys: int) -> Tensor:
    """A key mask of two rows, one of which keeps nothing."""
    return torch.stack([torch.arange(keys) < keys - 1, torch.zeros(keys, dtype=torch.bool)])


def assert_exported(module: Attention) -> None:
    """The program of one pair of lengths gives the module's numbers at every other."""
    program = exported(module, inputs(11, 15), key_mask=keep(15))
    nodes = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert nodes.count(torch.ops.relattn.tiled.default) == (module.layer.backend == "tiled")
    for queries, keys in LENGTHS:
        given = inputs(queries, keys)
        assert_equal(program.module()(*given, key_mask=keep(keys)), module(*given, key_mask=keep(keys)))


@every_traced_encoding_slowly
def test_every_length(name: str, rng: np.random.Generator) -> None:
    """With tiled; with dense see the next two, and test_onnx."""
    assert_exported(attention(name, rng, "tiled"))


def test_every_length_with_dense(rng: np.random.Generator) -> None:
    assert_exported(attention(ONE, rng, "dense"))


@every_traced_encoding_slowly
def test_self_attention_of_every_length(name: str, rng: np.random.Generator) -> None:
    """Queries and keys have one length, under one name: nothing in dense, which unrolls into the graph, compares it."""
    module = attention(name, rng, "dense")
    length = torch.export.Dim("length", min=2, max=LONGEST)
    program = torch.export.export(module, tuple(inputs(11)), dynamic_shapes={"query": {1: length}})
    for count in (2, 7, LONGEST):
        (given,) = inputs(count)
        assert_equal(program.module()(given), module(given))


@every_backend
def test_a_key_bias_sinks_and_a_cap_of_every_length(backend: str, rng: np.random.Generator) -> None:
    module = attention("shaw", rng, backend, fixed={"softcap": 2.0})
    queries, keys = (torch.export.Dim(which, min=2, max=LONGEST) for which in ("queries", "keys"))
    lengths = {"query": {1: queries}, "key": {1: keys}, "key_bias": {2: keys}, "sinks": {2: queries}}
    program = torch.export.export(module, tuple(inputs(11, 15)), of_no_axis(11, 15), dynamic_shapes=lengths)
    for some in LENGTHS:
        given, more = inputs(*some), of_no_axis(*some)
        assert_equal(program.module()(*given, **more), module(*given, **more))


def test_a_length_beyond_the_table_is_not_exported(rng: np.random.Generator) -> None:
    """The range that the export allows ends with a table that refuses what lies beyond."""
    (given,) = inputs(11)
    program = torch.export.export(
        attention("relative", rng), (given,), dynamic_shapes={"query": {1: torch.export.Dim.DYNAMIC}}
    )
    (length,) = program.range_constraints.values()
    assert (length.lower, length.upper) == (2, LONGEST)


@pytest.mark.parametrize("name", ["relative", "txl", "alibi_4_heads", "kerple", "sandwich", "function"])
def test_explicit_positions_that_an_encoding_reads(name: str, rng: np.random.Generator) -> None:
    module, (given,) = attention(name, rng), inputs(9)
    said = (
        "query_position, key_position: got listed positions in an export, and an encoding that reads them for the "
        "rows it needs, which a graph cannot; give starts, or use an encoding whose table clamps or zeroes"
    )
    positions = {"query_position": torch.arange(9), "key_position": torch.arange(9)}
    with refused(UnsupportedError, said):
        torch.export.export(module, (given,), positions)


@pytest.mark.parametrize("name", ["shaw", "t5", "rope"])
def test_explicit_positions_that_no_one_reads(name: str, rng: np.random.Generator) -> None:
    module, (given,) = attention(name, rng), inputs(9)
    program = torch.export.export(module, (given,), {"query_position": torch.arange(9)})
    positions = {"query_position": torch.randint(0, 9, (9,))}
    assert_equal(program.module()(given, **positions), module(given, **positions))

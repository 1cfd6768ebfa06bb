"""torch.export with dynamic lengths: the exported program gives the module's numbers at lengths that it never saw."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import ShawEmbedding, UnsupportedError
from relattn.nn import RelativeMultiheadAttention
from tests.bad_input.refusal import refused
from tests.contract.calls import assert_equal
from tests.ecosystem.layers import (
    LENGTHS,
    LONGEST,
    ONE,
    Attention,
    attention,
    axisless,
    every_backend,
    every_traced_encoding_slowly,
    inputs,
    one_kind_quickly,
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
    assert nodes.count(torch.ops.relattn.blocks.default) == (module.layer.backend == "blocks")
    for queries, keys in LENGTHS:
        given = inputs(queries, keys)
        assert_equal(program.module()(*given, key_mask=keep(keys)), module(*given, key_mask=keep(keys)))


@every_traced_encoding_slowly
def test_every_length(name: str, rng: np.random.Generator) -> None:
    """With blocks; with dense see the next two, and test_onnx."""
    assert_exported(attention(name, rng, "blocks"))


@pytest.mark.slow
def test_every_length_with_dense(rng: np.random.Generator) -> None:
    assert_exported(attention(ONE, rng, "dense"))


@pytest.mark.slow
@one_kind_quickly
def test_self_attention_of_every_length(name: str, rng: np.random.Generator) -> None:
    """Queries and keys have one length, under one name: nothing in dense, which unrolls into the graph, compares it."""
    module = attention(name, rng, "dense")
    length = torch.export.Dim("length", min=2, max=LONGEST)
    program = torch.export.export(module, tuple(inputs(11)), dynamic_shapes={"query": {1: length}})
    for count in (2, 7, LONGEST):
        (given,) = inputs(count)
        assert_equal(program.module()(given), module(given))


@pytest.mark.one_in(2)
@every_backend
def test_a_key_bias_sinks_and_a_cap_of_every_length(backend: str, rng: np.random.Generator) -> None:
    module = attention("shaw", rng, backend, fixed={"softcap": 2.0})
    queries, keys = (torch.export.Dim(which, min=2, max=LONGEST) for which in ("queries", "keys"))
    lengths = {"query": {1: queries}, "key": {1: keys}, "key_bias": {2: keys}, "sinks": {2: queries}}
    program = torch.export.export(module, tuple(inputs(11, 15)), axisless(11, 15), dynamic_shapes=lengths)
    for some in LENGTHS:
        given, more = inputs(*some), axisless(*some)
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
        "query_position, key_position: got explicit positions in an export, and an encoding that reads them for the "
        "rows it needs, which a graph cannot; give starts, or use an encoding whose table clamps or zeroes"
    )
    positions = {"query_position": torch.arange(9), "key_position": torch.arange(9)}
    with refused(UnsupportedError, said):
        torch.export.export(module, (given,), positions)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["shaw", "t5", "rope"])
def test_explicit_positions_that_no_one_reads(name: str, rng: np.random.Generator) -> None:
    module, (given,) = attention(name, rng), inputs(9)
    program = torch.export.export(module, (given,), {"query_position": torch.arange(9)})
    positions = {"query_position": torch.randint(0, 9, (9,))}
    assert_equal(program.module()(given, **positions), module(given, **positions))


class Backends(torch.nn.Module):
    """A layer of each backend that runs on a CPU, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            RelativeMultiheadAttention(16, 2, ShawEmbedding(8, 3), backend=name)
            for name in ("native", "blocks", "dense")
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, is_causal=True)
        return x


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_fresh_process_runs_what_was_saved(tmp_path: Path) -> None:
    """A program of torch.export, and a package of AOTInductor, whose process imports torch and relattn alone."""
    net, x = Backends().eval(), torch.randn(2, 11, 16)
    program = torch.export.export(net, (x,), dynamic_shapes=({1: torch.export.Dim("L", min=2, max=LONGEST)},))
    with torch.no_grad():
        torch.export.save(program, tmp_path / "program.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "package.pt2"))
        shorter = x[:, :7].contiguous()  # a package takes the strides of its example for granted
        torch.save((shorter, net(shorter)), tmp_path / "numbers.pt")
    script = """
import torch, relattn
x, expected = torch.load("numbers.pt")
with torch.no_grad():
    torch.testing.assert_close(torch.export.load("program.pt2").module()(x), expected)
    torch.testing.assert_close(torch._inductor.aoti_load_package("package.pt2")(x), expected)
print("same numbers")
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == "same numbers\n", run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "blocks"])
def test_onnx_of_a_program_asks_for_the_module(backend: str, rng: np.random.Generator) -> None:
    program = exported(attention(ONE, rng, backend).float(), inputs(11, 15, dtype=torch.float32))
    said = f"torch.onnx.export: got an ExportedProgram that calls relattn::{backend}; expected the module itself, or a"
    with pytest.raises(torch.onnx.errors.OnnxExporterError, match=said):
        torch.onnx.export(program, verbose=False)

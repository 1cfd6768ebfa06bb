"""Encodings on axes on the kernels of every instruction set: outputs, lse and every gradient within the budget."""

from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import RelativeEmbedding, ShawEmbedding, T5Bias, attention_and_lse, grid, relative_attention
from relattn.backends import problem_operator
from relattn.backends.cpu import operator
from relattn.backends.cpu.inputs import MOST_AXES
from relattn.errors import UnsupportedError
from tests.contract.axes import AXES_CASES
from tests.contract.check import by_formula
from tests.contract.operators import operator_arguments
from tests.contract.places import Place, on_a_grid
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import make_subject
from tests.native.passes import check
from tests.native.sets import RUNNABLE, every_set
from tests.native.test_native import assert_every_number_of_threads_gives_the_same_bits, drawn

pytestmark = [pytest.mark.pairs, pytest.mark.one_in(3)]

KERNELS = Path(__file__).parent.parent.parent / "src/relattn/backends/cpu/kernels"
HALVES = ("bfloat16", "float16")
SIZES = {("y", "x"): (7, 9), ("t", "y", "x"): (3, 4, 5), ("x",): (60,), ("z", "x"): (8, 8), ("time", "pitch"): (12, 5)}

every_case = pytest.mark.parametrize("name", AXES_CASES)
widest_set = pytest.mark.parametrize("instructions", RUNNABLE[:1], indirect=True)


def on_grid(name: str, rng: np.random.Generator, sizes: tuple[int, ...] | None = None, **changes) -> Setting:
    """A part of the grid asks all of it; a class token stands before it where the encoding lets one."""
    case = AXES_CASES[name]
    sizes = sizes or SIZES[case.axes]
    prefix_tokens = 1 if "class token" in case.layouts and rng.integers(2) else 0
    length = prefix_tokens + int(np.prod(sizes))
    first = int(rng.integers(length // 2))
    sides = [
        on_a_grid(case.axes, sizes, prefix_tokens, first=begin, length=count)
        for begin, count in ((first, changes.pop("queries", length - first)), (0, length))
    ]
    axes: dict[str, tuple[Place, Place]] = {axis: (sides[0][axis], sides[1][axis]) for axis in case.axes}
    queries, keys = (len(side[case.axes[0]].positions) for side in sides)
    heads = case.requirements().get("num_heads") or 4
    setting = Setting(2, heads, heads // 2, queries, keys, 4, 3, axes=axes, query_position=first)
    return replace(setting, seed=int(rng.integers(2**32)), **changes)


@every_set
@every_case
def test_a_few_tokens(name: str, instructions: str, rng: np.random.Generator) -> None:
    """Grids, parts of them, explicit positions, starts and digits, under every mask."""
    for kind in ("any", "any", "capped"):
        setting = random_setting(rng, **AXES_CASES[name].requirements(), kind=kind)
        check(make_subject(AXES_CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(9)
@every_set
@every_case
def test_across_blocks(name: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    """With limits on the sequence, or the sequence explicit, or neither; in float32 and in half precision."""
    for dtype in ("float32", str(rng.choice(HALVES))):
        setting = on_grid(name, rng)
        explicit = np.cumsum(rng.integers(1, 3, setting.key_length))
        changes = (
            {},
            {"is_causal": True},
            {"window": (20, 13)},
            {"query_position": explicit[-setting.query_length :], "key_position": explicit, "window": (30, 9)},
        )[int(rng.integers(4))]
        check(make_subject(AXES_CASES[name], replace(setting, **changes), dtype), "native", dtype, truth=by_formula)


@every_set
@every_case
def test_few_queries(name: str, instructions: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """They meet keys where they lie."""
    ran, run = [], operator._run
    monkeypatch.setattr(operator, "_run", lambda *given, few=False: (ran.append(few), run(*given, few=few)))
    dtype = str(rng.choice(["float32", "bfloat16"]))
    setting = on_grid(name, rng, queries=2, head_dim=20, value_dim=13, is_causal=bool(rng.integers(2)))
    check(make_subject(AXES_CASES[name], setting, dtype), "native", dtype, return_lse=True, truth=by_formula)
    assert ran.count(True) == 1


@widest_set
@pytest.mark.parametrize("name", ["sam", "beit", "everywhere", "key_query_on_both", "layoutlm_v3"])
def test_the_blocks_that_it_chooses(name: str, instructions: str, rng: np.random.Generator) -> None:
    setting = on_grid(name, rng, (20, 21), batch=1)
    check(make_subject(AXES_CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(6)
@widest_set
@pytest.mark.parametrize("queries", [2, 60])
@pytest.mark.parametrize("mask", ["key_mask", "segments", "boolean", "float", "dropout"])
def test_beside_masks(mask: str, queries: int, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    """With rows that see nothing, and keys that nobody sees."""
    for name in ("everywhere", "shaw_on_both", "key_query_on_both"):
        setting = on_grid(name, rng, (9, 8), queries=min(queries, 36))
        rows, keys = setting.query_length, setting.key_length
        given = {
            "key_mask": {"key_mask": rng.random((2, keys)) < 0.3},
            "segments": {"segment_ids": (rng.integers(0, 9, (2, rows)), rng.integers(0, 5, (2, keys)))},
            "boolean": {"attn_mask": rng.random((2, 1, rows, keys)) < 0.05},
            "float": {"attn_mask": np.where(rng.random((1, 4, rows, keys)) < 0.9, -np.inf, rng.normal(size=keys))},
            "dropout": {"dropout_p": 0.4},
        }[mask]
        subject = make_subject(AXES_CASES[name], replace(setting, **given), "float32")
        check(subject, "native", "float32", truth=by_formula)


def test_every_number_of_threads_gives_the_same_bits(rng: np.random.Generator) -> None:
    encoding = RelativeEmbedding(8, 12, num_heads=4).on("y") + ShawEmbedding(8, 5).on("x") + T5Bias(4)
    inputs, places = [drawn(2, 4, 1 + 12 * 25, 8, requires_grad=True) for _ in range(3)], grid(12, 25, prefix_tokens=1)

    def found() -> list[Tensor]:
        asked = {"query_position": places, "key_position": places, "encoding": encoding}
        output, lse = attention_and_lse(*inputs, **asked, backend="native")
        return [
            output,
            lse,
            *torch.autograd.grad(output.sin().sum() + lse.cos().sum(), [*inputs, *encoding.parameters()]),
        ]

    assert_every_number_of_threads_gives_the_same_bits(found)


def test_as_many_axes_as_the_kernels_read() -> None:
    """One more than that is refused."""
    assert f"MOST_AXES = {MOST_AXES};" in (KERNELS / "call.h").read_text()
    inputs, position = [drawn(1, 2, 12, 8) for _ in range(3)], torch.arange(12)
    for count in (MOST_AXES - 1, MOST_AXES):
        axes = {f"axis {number}": position // (number + 1) for number in range(count)}
        encoding = reduce(add, [T5Bias(2).on(axis) for axis in axes])
        asked = {"encoding": encoding, "query_position": axes, "key_position": axes}
        if count < MOST_AXES:
            expected = relative_attention(*inputs, **asked, backend="dense")
            torch.testing.assert_close(relative_attention(*inputs, **asked, backend="native"), expected)
        else:
            said = "its kernels read up to 8 axes, the sequence among them, and there are 9"
            with pytest.raises(UnsupportedError, match=said):
                relative_attention(*inputs, **asked, backend="native")


@pytest.mark.slow
def test_the_operators_pass_opcheck(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tables of every kind, joint ones too, behind a class token."""
    subject = make_subject(AXES_CASES["everywhere"], on_grid("everywhere", rng, (3, 4), query_position=0), "float32")
    arguments = operator_arguments(problem_operator, "native", subject, 0.0, monkeypatch)
    torch.library.opcheck(torch.ops.relattn.native.default, arguments)


class OnAGrid(torch.nn.Module):
    """A call over a grid, as a compiled or exported model has it."""

    def __init__(self) -> None:
        super().__init__()
        self.on_axes = RelativeEmbedding(8, 3).on("y") + ShawEmbedding(8, 2).on("x")

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        where = grid(3, 4)
        asked = {"query_position": where, "key_position": where, "encoding": self.on_axes}
        return relative_attention(query, key, value, **asked, backend="native")


@pytest.mark.slow
@pytest.mark.graphs
def test_one_graph_for_every_batch() -> None:
    attend = OnAGrid()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 5):
        leaves = [*(drawn(batch, 2, 12, 8, requires_grad=True) for _ in range(3)), *attend.parameters()]
        answers = compiled(*leaves[:3]), attend(*leaves[:3])
        found, expected = ([answer, *torch.autograd.grad(answer.sum(), leaves)] for answer in answers)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.graphs
def test_exported() -> None:
    attend, inputs = OnAGrid(), tuple(drawn(2, 2, 12, 8) for _ in range(3))
    assert torch.equal(torch.export.export(attend, inputs).module()(*inputs), attend(*inputs))

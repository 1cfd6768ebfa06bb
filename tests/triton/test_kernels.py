"""The kernels against the equation in float64, every pair written out, at sizes that cross tiles and fill none.

What lies beyond a tensor's last row and column in memory is NaN: a number read from there would be seen.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn.backends.triton.host.call import Call, ExplicitAxis, Table
from relattn.equation.problem import Differentiable, Part
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions
from tests.oracle.budget import EPS, REFUSAL_CHANCE, assert_within_budget, max_error
from tests.oracle.philox import dropout_factors
from tests.triton import everywhere
from tests.triton.calls import answered, every_gradient_of, gradient_names, on_axis, some_gradients_of

pytest_plugins = ["tests.contract.fresh"]

TABLES = ("relative_keys", "relative_queries", "relative_values", "bias")
LONGER, WIDER = 40, 3
ALIGNED = 16
"""Numbers of which a row's length is a multiple where it is aligned: what Triton's compiler looks for in strides."""
STRETCHED = {"cpu": 1, "cuda": 4}
"""Every length and offset, as tiles are longer on a GPU than in the interpreter."""


@pytest.fixture(autouse=True)
def on_device(device: str, rng):
    """Fresh tensors lie on the device of the test."""
    with torch.device(device):
        yield


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum by one program, as where determinism is asked for."""
    from relattn.backends.triton.kernels import backward

    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: True)


def random_rows(*shape: int, dtype: torch.dtype, aligned: bool = False) -> Tensor:
    """A tensor inside of a larger one of NaN, each row where it may be read 16 bytes at a time if it is aligned."""
    wider = ALIGNED - shape[-1] % ALIGNED if aligned else WIDER
    around = torch.full((*shape[:-2], shape[-2] + LONGER, shape[-1] + wider), torch.nan, dtype=dtype)
    inside = around[..., : shape[-2], : shape[-1]]
    return inside.copy_(torch.randn(shape))


def make_call(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, heads: tuple[int, int] = (2, 1),
    lengths: tuple[int, int] = (21, 37), widths: tuple[int, int, int] = (24, 20, 18), tables: tuple[str, ...] = TABLES,
    rows: int = 9, first: int = -3, zero: bool = False, offset: int = -5, masks: str = "", shared: bool = False,
    seed: int | None = None, aligned: bool = False, key_bias: bool = False, added: str | None = None,
    axes: tuple[dict[str, Any], ...] = (), full: tuple[str, ...] = (), **given: Any,
) -> Call:  # fmt: skip
    """Random numbers; every table has another extent, and every other one a head of its own for each query head.

    full: the tables that have a row for every offset. zero: of the others.
    masks: of k(ey mask), s(egments), p(air mask). added: the axes, of b, h, q and k, along which a float mask does not
    broadcast. shared: the relative query is the query. axes: what `random_axis` is asked for.
    """
    (num_heads, key_heads), (queries, keys), (d, dv, dr) = heads, lengths, widths
    query = random_rows(batch, num_heads, queries, d, dtype=dtype, aligned=aligned)
    relative = None if shared else random_rows(batch, num_heads, queries, dr, dtype=dtype, aligned=aligned)
    found = random_tables(tables, num_heads, (d if shared else dr, d, dv), dtype, rows, first, zero, aligned)
    found |= random_tables(
        full, num_heads, (d if shared else dr, d, dv), dtype, queries + keys, offset - queries + 1, False, aligned
    )
    segmented = "s" in masks
    pair_mask = torch.rand(1, num_heads, queries, keys) < 0.6 if "p" in masks else None
    if added is not None:
        sizes = zip("bhqk", (batch, num_heads, queries, keys), strict=True)
        pair_mask = random_rows(*(size if axis in added else 1 for axis, size in sizes), dtype=dtype)
        pair_mask[torch.rand(pair_mask.shape) < 0.2] = -torch.inf
    call = Call(
        query=query,
        key=random_rows(batch, key_heads, keys, d, dtype=dtype, aligned=aligned),
        value=random_rows(batch, key_heads, keys, dv, dtype=dtype, aligned=aligned),
        relative_query=relative if "relative_keys" in found else None,
        offset=offset,
        key_bias=random_rows(batch, num_heads, keys, dtype=torch.float32) if key_bias else None,
        key_shift=random_rows(batch, num_heads, queries, dtype=torch.float32) if key_bias else None,
        seed=None if seed is None else torch.tensor(seed),
        key_mask=torch.rand(batch, keys) < 0.7 if "k" in masks else None,
        query_segments=torch.randint(0, 3, (batch, queries)) if segmented else None,
        key_segments=torch.randint(0, 3, (batch, keys)) if segmented else None,
        pair_mask=pair_mask,
        **dict.fromkeys(TABLES) | found,
        **{
            "part": Part(0, 0, 0, num_heads),
            "lowest": None,
            "highest": None,
            "scale": 0.3,
            "softcap": None,
            "dropout_p": 0.0,
            "in_float32": False,
            "precision": "ieee",
        }
        | given,
    )
    return replace(call, axes=tuple(random_axis(call, **one) for one in axes))


def random_tables(
    tables: tuple[str, ...], heads: int, widths: tuple[int, int, int], dtype: torch.dtype, rows: int, first: int,
    zero: bool, aligned: bool = False,
) -> dict[str, Table]:  # fmt: skip
    """Those among `tables`, each of another extent."""
    found = {}
    for n, (name, width) in enumerate(zip(TABLES, (*widths, None), strict=True)):
        if name in tables:
            shape = (heads if n % 2 else 1, rows + 3 * n)
            if width is None:
                values = torch.randn(shape).to(dtype)
            else:
                values = random_rows(*shape, width, dtype=dtype, aligned=aligned)
            found[name] = Table(values, first - n, zero)
    return found


def random_axis(
    call: Call, number: int, *, tables: tuple[str, ...] = TABLES, rows: int = 9, first: int = -4, zero: bool = False,
    own: int | None = None, far: int = 0, digits: GridPositions | None = None, **limits: int,
) -> ExplicitAxis:  # fmt: skip
    """Positions in any order, some of them twice, those of the queries of each batch element; far: where they lie.

    own: the width of the axis' own relative query; None where that is the query. digits: where the keys stand, and the
    queries as the last of them.
    """
    (batch, heads, queries, d), keys = call.query.shape, call.key.shape[2]
    relative = None if own is None else random_rows(batch, heads, queries, own, dtype=call.query.dtype)
    widths = (d if own is None else own, d, call.value.shape[3])
    found = dict.fromkeys(TABLES) | random_tables(tables, heads, widths, call.query.dtype, rows, first, zero)
    if digits is not None:
        sides = digits.part(slice(keys - queries, keys)), digits
    else:
        sides = (
            ExplicitPositions(torch.randint(0, keys, (batch, queries)) + far),
            ExplicitPositions(torch.randint(0, keys, (keys,)) + far),
        )
    return ExplicitAxis(number, *sides, relative, **found, **limits)


CALLS: dict[str, dict[str, Any]] = {
    "no table": {"tables": ()},
    "relative keys": {"tables": ("relative_keys",), "batch": 2},
    "relative queries": {"tables": ("relative_queries",), "batch": 2},
    "relative values": {"tables": ("relative_values",), "batch": 2},
    "a bias": {"tables": ("bias",), "batch": 2},
    "clipped": {},
    "zero beyond": {"rows": 20, "first": -11, "zero": True},
    "tables beyond every offset": {"rows": 101, "first": -50},
    "full vectors beside a clipped bias": {
        "lengths": (21, 90),
        "offset": -40,
        "full": TABLES[:3],
        "tables": TABLES[3:],
    },
    "a full bias beside clipped vectors": {
        "lengths": (21, 90),
        "offset": -40,
        "full": TABLES[3:],
        "tables": TABLES[:3],
        "zero": True,
    },
    "full values beside clipped keys": {
        "lengths": (50, 90),
        "offset": -20,
        "full": TABLES[2:3],
        "tables": TABLES[:1],
    },
    "tables left of every offset": {"rows": 4, "first": -100},
    "tables right of every offset": {"rows": 4, "first": 60},
    "one row": {"rows": 1, "first": 0},
    "causal": {"highest": 0},
    "a window": {"lowest": -7, "highest": 3, "offset": 2},
    "nothing far to the left": {"lowest": -7},
    "rows that see nothing": {"lowest": -3, "highest": -1, "offset": -20},
    "no row sees anything": {"highest": 0, "offset": 500},
    "limits far away": {"lowest": -(2**40), "highest": 2**40},
    "a limit far beyond every key": {"lowest": 2**40},
    "masks": {"masks": "ksp"},
    "the query itself": {"shared": True, "rows": 20, "first": -11},
    "groups of heads": {"heads": (6, 2), "lengths": (18, 17)},
    "few queries, many keys": {"lengths": (3, 70), "offset": -67, "highest": 0, "lowest": -60},
    "one key": {"lengths": (20, 1)},
    "whole tiles": {"lengths": (32, 16), "offset": -1},
    "narrow": {"widths": (16, 16, 16)},
    "wide": {"widths": (250, 256, 130), "heads": (1, 1), "lengths": (16, 17)},
    "dropout": {"dropout_p": 0.3, "seed": 12345678901},
    "a low cap": {"softcap": 0.7},
    "a high cap": {"softcap": 40.0, "tables": ("relative_keys",)},
    "the lowest cap": {"softcap": 2.0**-100},
    "the highest cap": {"softcap": 2.0**100, "tables": ("bias",)},
    "a key bias": {"key_bias": True, "tables": ("bias",), "batch": 2},
    "a cap and a key bias": {"softcap": 1.5, "key_bias": True, "heads": (6, 2), "lengths": (18, 17), "masks": "k"},
    "in float32": {"in_float32": True, "tables": ()},
    "a float mask": {"added": "bhqk", "batch": 2, "highest": 7},
    "a float mask for all heads": {"added": "bqk", "batch": 2, "heads": (4, 2), "tables": ("relative_keys",)},
    "a float mask for all queries": {"added": "bk", "batch": 2, "masks": "k", "lowest": -20},
    "a float mask for all keys": {"added": "hq", "batch": 2, "tables": ("relative_values",), "softcap": 1.5},
    "a float mask for all pairs": {"added": "bh", "batch": 2, "tables": ("bias",), "key_bias": True},
    "a float mask and dropout": {"added": "qk", "dropout_p": 0.3, "seed": 12345678901, "tables": ()},
    "wide tables beside a float mask": {"widths": (72, 80, 68), "added": "hk", "heads": (2, 2), "lengths": (18, 20)},
    "wide tables beside an axis": {"widths": (72, 80, 68), "lengths": (18, 17), "axes": ({"number": 1, "own": 24},)},
    "three axes, a table of one row": {
        "lengths": (18, 17),
        "batch": 2,
        "tables": ("bias",),
        "axes": (
            {"number": 1, "own": 8, "rows": 1, "first": 0},
            {"number": 2, "own": 40, "tables": TABLES[:3], "zero": True},
            {"number": 3, "tables": TABLES[1:], "rows": 40, "first": -20},
        ),
    },
}


def case(name: str, device: str) -> Call:
    """A call of CALLS, stretched."""
    by, given = STRETCHED[device], {"lengths": (21, 37), "rows": 9, "first": -3, "offset": -5} | CALLS[name]
    lengths = ("rows", "first", "offset", "lowest", "highest")
    given |= {key: given[key] * by for key in lengths if key in given}
    return make_call(**given | {"lengths": tuple(length * by for length in given["lengths"])})


@everywhere
@pytest.mark.parametrize("name", CALLS)
def test_output_and_every_gradient(name: str, device: str) -> None:
    hold_to_the_equation(case(name, device))


@everywhere
@pytest.mark.parametrize("name", CALLS)
def test_every_gradient_in_a_fixed_order(name: str, device: str, in_order: None) -> None:
    hold_to_the_equation(case(name, device))


TWO_TILES: dict[str, dict[str, Any]] = {
    "relative keys": {"tables": (), "full": TABLES[:1], "heads": (4, 2), "batch": 2, "masks": "k"},
    "relative keys, causal": {"tables": (), "full": TABLES[:1], "highest": 0},
    "clipped keys and values": {"tables": ("relative_keys", "relative_values"), "first": -20},
    "clipped keys and queries, a key bias": {"tables": TABLES[:2], "first": -40, "heads": (4, 2), "key_bias": True},
    "full keys, clipped queries": {"tables": TABLES[1:2], "full": TABLES[:1], "zero": True, "lowest": -50},
    "values, a window": {"tables": (), "full": TABLES[2:3], "lowest": -30, "highest": 12, "softcap": 2.0},
    "a bias": {"tables": (), "full": TABLES[3:], "batch": 2},
    "dropout": {"tables": (), "full": TABLES[:1], "dropout_p": 0.3, "seed": 12345678901},
    "a start that is a tensor": {"tables": TABLES[:1], "rows": 50, "first": -30, "start": -35},
}
"""In half precision, over more than two tiles of keys and of offsets."""


@everywhere
@pytest.mark.parametrize("name", TWO_TILES)
def test_programs_that_own_two_tiles(name: str, device: str, in_order: None) -> None:
    from relattn.backends.triton.host.tile_configs import tiles_of_a_program
    from relattn.backends.triton.kernels.diagonals import tables_kernel

    given = {"lengths": (50, 100), "offset": -35} | TWO_TILES[name]
    start = given.pop("start", None)
    call = make_call(torch.float16, **given)
    assert tiles_of_a_program(tables_kernel, call, 130, 80) == 2
    assert tiles_of_a_program(tables_kernel, call, 16, 80) == 1
    hold_to_the_equation(call if start is None else replace(call, offset=torch.tensor(start)))


SEVERAL: dict[str, dict[str, Any]] = {
    "no table": {"tables": (), "batch": 2, "highest": 0},
    "relative keys": {"tables": (), "full": TABLES[:1], "batch": 2, "highest": 0},
    "relative keys, the query itself": {"tables": TABLES[:1], "shared": True, "heads": (4, 2), "lowest": -30},
    "relative values": {"tables": (), "full": TABLES[2:3], "masks": "ksp"},
    "a bias": {"tables": (), "full": TABLES[3:], "batch": 2, "softcap": 1.5, "key_bias": True},
    "clipped": {"tables": (TABLES[0], *TABLES[2:]), "lengths": (70, 150), "offset": -60, "key_bias": True},
    "zero beyond": {"tables": (TABLES[0], *TABLES[2:]), "lengths": (70, 150), "offset": -60, "zero": True},
    "a window": {"tables": TABLES[:1], "lowest": -7, "highest": 3, "heads": (6, 2)},
    "rows that see nothing": {"tables": TABLES[:1], "lowest": -3, "highest": -1, "offset": -20},
    "a float mask": {"tables": TABLES[:1], "added": "bhqk", "batch": 2, "highest": 7},
    "a start that is a tensor": {"tables": (TABLES[0], TABLES[3]), "lowest": -30, "start": -35},
}
"""Of terms that programs with several tiles of queries take."""


@everywhere
@pytest.mark.parametrize("name", SEVERAL)
def test_programs_that_own_several_tiles_of_queries(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More queries than a program has, and not a multiple."""
    from relattn.backends.triton.host import autotune, tile_configs

    if device == "cuda" and torch.cuda.get_device_capability() != (8, 0):
        pytest.skip("only GPUs of compute capability 8.0 are given such programs")

    def only_several(kernel: str, call: Call, arch: int) -> list[Any]:
        several = kernel in tile_configs.ALONG_KEYS
        return [tile_configs.TileConfig(16, 2, 1, groups=2) if several else tile_configs.SMALLEST]

    monkeypatch.setattr(autotune, "tile_configs", only_several)
    monkeypatch.setattr(autotune, "_first", {})
    given = {"lengths": (50, 40), "rows": 9, "first": -4, "offset": -5} | SEVERAL[name]
    start = given.pop("start", None)
    call = make_call(**given)
    hold_to_the_equation(call if start is None else replace(call, offset=torch.tensor(start)))
    groups = {kernel.__name__: size.groups for (kernel, *_), size in autotune._first.items()}
    assert [groups[name] for name in tile_configs.ALONG_KEYS] == [2, 2]


@everywhere
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype: torch.dtype, device: str) -> None:
    hold_to_the_equation(make_call(dtype, masks="k", highest=4))


@everywhere
def test_large_scores(device: str) -> None:
    """e^200 is no float32: beyond the last query, where no lse takes it away, it must not appear."""
    call = make_call(tables=("bias",))
    assert call.bias is not None
    hold_to_the_equation(replace(call, bias=call.bias._replace(values=call.bias.values + 200.0)))


@everywhere
def test_tables_in_float32_beside_half_precision(device: str) -> None:
    call = make_call(torch.bfloat16, lengths=(17, 18))
    tables = {name: getattr(call, name) for name in TABLES}
    hold_to_the_equation(
        replace(call, **{name: table._replace(values=table.values.float()) for name, table in tables.items()})
    )


@everywhere
def test_gradients_are_the_same_bits_on_every_run(device: str, in_order: None) -> None:
    call = make_call(batch=2)
    cotangents = random_cotangents(call)
    first, second = run(call, *cotangents), run(call, *cotangents)
    assert all(torch.equal(first[name], second[name]) for name in first)


@everywhere
@pytest.mark.parametrize("ordered", [False, True])
def test_only_wanted_tables_get_a_gradient(ordered: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from relattn.backends.triton.kernels import backward as backward_module
    from relattn.backends.triton.kernels.backward import backward
    from relattn.backends.triton.kernels.forward import forward

    monkeypatch.setattr(backward_module, "is_deterministic", lambda call, wanted: ordered)
    call = make_call(lengths=(5, 6))
    by_output, by_lse = random_cotangents(call)
    answers = answered(forward(call), by_output, by_lse)
    found = backward(call, answers, some_gradients_of(call, {"query", "bias"})).axes[0].tables
    every = backward(call, answers, every_gradient_of(call)).axes[0].tables
    assert found.bias is not None and every.bias is not None
    torch.testing.assert_close(found.bias, every.bias, **({"rtol": 0, "atol": 0} if ordered else {}))
    assert found[:3] == (None, None, None)


WANTED = {
    "all but the first": [on_axis("bias", 1), *(on_axis(name, 2) for name in TABLES[1:])],
    "some of each": [on_axis("relative_queries", 1), on_axis("relative_keys", 2), on_axis("bias", 2)],
    "none of the first axis": [on_axis("relative_values", 2)],
}


@everywhere
@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("ordered", [False, True])
def test_wanted_tables_of_axes_get_theirs(
    ordered: bool, kind: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums of all stand one after the other in memory."""
    from relattn.backends.triton.kernels import backward as backward_module
    from relattn.backends.triton.kernels.backward import backward
    from relattn.backends.triton.kernels.forward import forward

    monkeypatch.setattr(backward_module, "is_deterministic", lambda call, wanted: ordered)
    axes = tuple({"number": n, "own": 8, "rows": 7 + n} for n in (1, 2))
    call = make_call(lengths=(5, 6), axes=axes, tables=("bias",))
    cotangents = random_cotangents(call)
    expected = run(call, *cotangents)
    wanted = some_gradients_of(call, {"query", *WANTED[kind]})
    found = named(backward(call, answered(forward(call), *cotangents), wanted))
    tables = {on_axis(name, n) for name in TABLES for n in range(3)}
    assert tables & set(found) == set(WANTED[kind])
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


@everywhere
@pytest.mark.parametrize("ordered", [False, True])
def test_gradients_are_contiguous(ordered: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 too, where nothing converts what was added up beside spare rows: a compiled graph counts on it."""
    from relattn.backends.triton.kernels import backward

    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: ordered)
    call = make_call(lengths=(12, 20), axes=({"number": 1, "own": 8}, {"number": 2, "own": 16}))
    found = run(call, *random_cotangents(call))
    assert {"key", "value", "bias", *TABLES} < set(found)
    assert len(found) == 10 + 2 * 5
    assert all(each.is_contiguous() and each.dtype == torch.float32 for each in found.values())
    assert len({each.untyped_storage().data_ptr() for each in found.values()}) == len(found), "none is part of another"


@everywhere
@pytest.mark.parametrize("are_explicit", [False, True], ids=["of starts", "of explicit positions"])
@pytest.mark.parametrize("strides", ["by rows", "one number"])
def test_strides_of_a_bias(strides: str, are_explicit: bool, device: str) -> None:
    """As a table [R, H] gives it, and expanded."""
    axes = ({"number": 1, "tables": TABLES[3:], "rows": 15, "first": -7},) if are_explicit else ()
    call = make_call(torch.float32, tables=() if are_explicit else TABLES[3:], axes=axes)
    bias = (call.axes[0] if are_explicit else call).bias
    assert bias is not None
    changed = {"by rows": bias.values.t().contiguous().t(), "one number": bias.values[:, :1].expand_as(bias.values)}
    bias = bias._replace(values=changed[strides])
    hold_to_the_equation(
        replace(call, **{"axes": (call.axes[0]._replace(bias=bias),)} if are_explicit else {"bias": bias})
    )


def hold_to_the_equation(call: Call) -> None:
    """Output, lse and every gradient, within the budget of sums over all pairs and of the sums inside of these.

    Those are a score's dot products, a row of weights and dO . v, as in `tests.contract.check.sum_lengths`.
    """
    cotangents, keep = random_cotangents(call), factors(call)
    found = run(call, *cotangents)
    truth = equation(call, torch.float64, keep, *cotangents)
    plain = equation(call, call.query.dtype, keep, *cotangents)
    assert found.keys() == truth.keys()
    relative = [call.query if axis.relative_query is None else axis.relative_query for axis in axes_of(call)]
    score = call.query.shape[3] + 4 + sum(call.query.shape[3] + each.shape[3] for each in relative)
    pairs = call.query.shape[:3].numel() * call.key.shape[2]
    terms = score + call.key.shape[2] + call.value.shape[3] + pairs
    name_of_dtype = str(call.query.dtype).removeprefix("torch.")
    owed = for_the_stored_output(call, truth["output"], cotangents[0])
    for name, expected in truth.items():
        answer, oracle = found[name].double().cpu().numpy(), expected.cpu().numpy()
        plain_error = max_error(plain[name].double().cpu().numpy(), oracle)
        assert_within_budget(answer, oracle, plain_error, terms, name_of_dtype, name, owed=owed.get(name, 0.0))


def random_cotangents(call: Call) -> tuple[Tensor, Tensor]:
    """dO and dlse."""
    rows = call.query.shape[:3]
    return torch.randn(*rows, call.value.shape[3]).to(call.query.dtype), torch.randn(rows)


def run(call: Call, by_output: Tensor, by_lse: Tensor) -> dict[str, Tensor]:
    """What the kernels answer, by name."""
    from relattn.backends.triton.kernels.backward import backward
    from relattn.backends.triton.kernels.forward import forward

    answers = forward(call)
    gradients = backward(call, answered(answers, by_output, by_lse), every_gradient_of(call))
    return {"output": answers.output, "lse": answers.lse} | named(gradients)


def named(gradients: Differentiable[Tensor | None]) -> dict[str, Tensor]:
    """Those that are there, by name."""
    by_name = zip(gradient_names(len(gradients.axes)), gradients.leaves(), strict=True)
    return {name: gradient for name, gradient in by_name if gradient is not None}


def equation(
    call: Call, dtype: torch.dtype, keep: Tensor | None, by_output: Tensor, by_lse: Tensor
) -> dict[str, Tensor]:
    """The same answers from the equation, in this dtype, gradients by autograd."""
    leaves = leaves_of(call, dtype)
    output, lse, _ = attend(call, leaves, keep)
    seen = lse.isfinite()
    total = (output * by_output.to(dtype)).sum() + (lse[seen] * by_lse.to(dtype)[seen]).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {"output": output.detach(), "lse": lse.detach()} | dict(zip(leaves, gradients, strict=True))


def for_the_stored_output(call: Call, output: Tensor, by_output: Tensor) -> dict[str, float]:
    """What the gradients owe for delta_i = dO_i . O_i, whose O was stored in the dtype. The plain formula has no delta;
    where a row has one key, or few, the rest of dS cancels.

        error of the gradient by x  =  sum_i e_i sum_j P_ij dS_ij/dx        e_i = sum_v delta_iv dO_iv O_iv

    P is that of dS, without dropout. The roundings delta_iv are independent, of mean zero, and at most u = eps / 2. So
    (Azuma and Hoeffding, as in the budget) the error exceeds lambda times the root of

        sum_iv (u dO_iv O_iv)^2 sum_j P_ij (dS_ij/dx)^2

    with the chance p: (sum_j P_ij dS_ij/dx)^2 is at most the sum over j that stands here, for P sums up to 1. dS_ij/dx
    has one term for every product that x stands in, n at most, and its square is at most n times the sum of theirs.
    """
    dtype = str(call.query.dtype).removeprefix("torch.")
    leaves = leaves_of(call, torch.float64)
    _, _, weights = attend(call, leaves, None)
    errors = (EPS[dtype] / 2 * by_output.double() * output).square().sum(-1, keepdim=True)
    squares = {name: leaf.detach().square() for name, leaf in leaves.items()}
    squares = {name: one.masked_fill(one.isinf(), 0.0).requires_grad_() for name, one in squares.items()}
    scores, _ = scored(replace(call, softcap=None, scale=call.scale**2), squares)
    total = (weights.detach() * errors * scores).sum()
    found = torch.autograd.grad(total, list(squares.values()), allow_unused=True, materialize_grads=True)
    products = 1 + 2 * len(axes_of(call))
    return {
        name: math.sqrt(2 * math.log(2 * one.numel() / REFUSAL_CHANCE) * products * float(one.abs().max()))
        for name, one in zip(squares, found, strict=True)
        if one.numel()
    }


def leaves_of(call: Call, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors that get gradients, in this dtype."""
    given: dict[str, Any] = {name: getattr(call, name) for name in ("query", "key", "value", "key_bias", "pair_mask")}
    for axis in axes_of(call):
        given |= tensors_of(axis)
    return {
        name: values.to(dtype).detach().clone().requires_grad_()
        for name, values in given.items()
        if values is not None and values.is_floating_point()
    }


def attend(call: Call, tensors: dict[str, Tensor], keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """O, lse and P, a number for every pair; keep: the factors of dropout."""
    scores, values = scored(call, tensors)
    allowed = visible(call).expand(scores.shape)
    alive = allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(~allowed & alive, -torch.inf)
    weights = scores.softmax(-1).masked_fill(~alive, 0.0)
    if keep is not None:
        weights = weights * keep.to(weights.dtype)
    lse = scores.logsumexp(-1).masked_fill(~alive[..., 0], -torch.inf)
    return (weights.unsqueeze(-1) * values).sum(-2), lse, weights


def scored(call: Call, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """S of all pairs, and v_j + RV[d]."""
    query, group = tensors["query"], call.query.shape[1] // call.key.shape[1]
    key, value = (tensors[name].repeat_interleave(group, 1) for name in ("key", "value"))
    products, biases, values = query @ key.mT, [], value.unsqueeze(-3)
    for axis in axes_of(call):
        relative_keys, relative_queries, relative_values, bias = (rows_of(call, axis, name, tensors) for name in TABLES)
        if relative_keys is not None:
            r = tensors.get(on_axis("relative_query", axis.number), query)
            products = products + (r.unsqueeze(-2) * relative_keys).sum(-1)
        if relative_queries is not None:
            products = products + (relative_queries * key.unsqueeze(-3)).sum(-1)
        if relative_values is not None:
            values = values + relative_values
        if bias is not None:
            biases.append(bias)
    scores = sum(biases, call.scale * products)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.key_bias is not None and call.key_shift is not None:
        scores = scores + tensors["key_bias"].unsqueeze(-2) - call.key_shift.to(scores.dtype).unsqueeze(-1)
    if call.adds_mask:
        mask = tensors["pair_mask"]
        scores = scores + mask.masked_fill(mask == -torch.inf, 0.0)
    return scores, values


def axes_of(call: Call) -> list[ExplicitAxis]:
    """All axes; a sequence of starts by explicit positions."""
    if call.explicit_sequence is not None:
        return list(call.axes)
    tables = {name: getattr(call, name) for name in TABLES}
    limits = {"lowest": call.lowest, "highest": call.highest}
    return [
        ExplicitAxis(
            0, ContiguousPositions(0), ContiguousPositions(call.offset), call.relative_query, **tables, **limits
        ),
        *call.axes,
    ]


def tensors_of(axis: ExplicitAxis) -> dict[str, Tensor]:
    """Those that get gradients, by their names in the problem."""
    tables = {name: getattr(axis, name) for name in TABLES}
    found = {"relative_query": axis.relative_query} | {name: table and table.values for name, table in tables.items()}
    return {on_axis(name, axis.number): tensor for name, tensor in found.items() if tensor is not None}


def offsets_of(call: Call, axis: ExplicitAxis) -> Tensor:
    """d_ij, [B, 1, Lq, Lk] or what broadcasts to it."""
    device = call.query.device
    keys, queries = axis.keys.expand(call.key.shape[2], device), axis.queries.expand(call.query.shape[2], device)
    found = keys.unsqueeze(-2) - queries.unsqueeze(-1)
    return found.reshape(-1, 1, *found.shape[-2:])


def rows_of(call: Call, axis: ExplicitAxis, name: str, tensors: dict[str, Tensor]) -> Tensor | None:
    """The row of a table for each pair, [B, H, Lq, Lk, width], or of a bias without the width."""
    table = getattr(axis, name)
    if table is None:
        return None
    index = (offsets_of(call, axis) - table.first).squeeze(1)
    found = tensors[on_axis(name, axis.number)][:, index.clamp(0, table.values.shape[1] - 1)].transpose(0, 1)
    inside = (index >= 0) & (index < table.values.shape[1]) | (not table.zero)
    inside = inside.unsqueeze(1)
    return torch.where(inside.reshape(inside.shape + (1,) * (found.dim() - 4)), found, 0.0)


def visible(call: Call) -> Tensor:
    """True where a pair attends, [B, Hq, Lq, Lk] or what broadcasts to it."""
    sequence = axes_of(call)[0]
    offsets = offsets_of(call, sequence)
    allowed = torch.ones_like(offsets, dtype=torch.bool)
    if sequence.lowest is not None:
        allowed = allowed & (offsets >= sequence.lowest)
    if sequence.highest is not None:
        allowed = allowed & (offsets <= sequence.highest)
    if call.key_mask is not None:
        allowed = allowed & call.key_mask[:, None, None]
    if call.query_segments is not None and call.key_segments is not None:
        allowed = allowed & (call.query_segments[:, :, None] == call.key_segments[:, None])[:, None]
    if call.pair_mask is None:
        return allowed
    return allowed & (call.pair_mask != -torch.inf if call.adds_mask else call.pair_mask)


def factors(call: Call) -> Tensor | None:
    """By what dropout multiplies the weights, [B, Hq, Lq, Lk], pair by pair; None without dropout."""
    if call.seed is None:
        return None
    (batch, heads, queries), keys, part = call.query.shape[:3], call.key.shape[2], call.part
    shape = batch, part.heads, part.query + queries, part.key + keys
    whole = torch.from_numpy(dropout_factors(int(call.seed), call.dropout_p, *shape))
    return whole[:, part.head : part.head + heads, part.query :, part.key :].to(call.query.device)

"""The comparison sees mistakes that only a tile loop can make: at the edges of tiles, between chunks, on the way back.

One mistake each, as in `test_mutations`, in one place of the tiled backend: everywhere, which the outputs must show, or
in the backward pass alone, which a gradient must. The tiles are such that every kind of edge is met: heights that do
not divide the queries, several chunks of keys, keys in more blocks than one, two groups of heads.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from relattn import OffsetTable, relative_attention
from relattn.backends.tiled import backward, bands, forward, operator, scores, tiles
from relattn.backends.tiled.sizes import TileSizes
from tests import seeds
from tests.contract.cases import CASES
from tests.contract.check import assert_red, check
from tests.contract.settings import Setting
from tests.contract.subject import Subject, make_subject

pytestmark = pytest.mark.one_in(2)

pytest_plugins = ["tests.contract.fresh"]

Patch = pytest.MonkeyPatch

LAYOUTS = {
    "starts": {"query_position": 1, "key_position": 0},
    "explicit": {
        "query_position": np.array([4, 1, 6, 3, 2, 7, 5]),
        "key_position": np.array([[0, 2, 3, 1, 4, 7, 5, 6], [1, 0, 4, 2, 6, 3, 7, 5]]),
    },
}


@pytest.fixture(autouse=True)
def ragged_tiles(monkeypatch: Patch) -> None:
    monkeypatch.setattr(operator, "tile_sizes", lambda problem: TileSizes(queries=3, keys=4, key_heads=1))


def subject_of(layout: str, rng: np.random.Generator) -> Subject:
    """Every term; causality and a window that cross tiles on either side; a key mask."""
    kept = np.ones((2, 8), dtype=bool)
    kept[0, 2] = kept[1, 3] = False
    setting = Setting(
        batch=2,
        num_heads=4,
        num_kv_heads=2,
        query_length=7,
        key_length=8,
        head_dim=4,
        value_dim=3,
        is_causal=True,
        window=(4, None),
        key_mask=kept,
        seed=int(rng.integers(2**32)),
        **LAYOUTS[layout],
    )
    return make_subject(CASES["terms_all"], setting)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_control_is_green(layout: str, rng: np.random.Generator) -> None:
    check(subject_of(layout, rng), "tiled", "float64")


# --- mistakes that either pass can make


def wrap(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[Patch], None]:
    """owner.name(*arguments) becomes change(owner.name, *arguments)."""

    def patch(monkeypatch: Patch) -> None:
        whole = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments, **keywords: change(whole, *arguments, **keywords))

    return patch


def other_chunks(change: Callable[[list[slice]], list[slice]]) -> Callable[[Patch], None]:
    """Other chunks of keys for every tile of queries."""

    def patch(monkeypatch: Patch) -> None:
        for module in (forward, backward):
            wrap(module, "key_chunks", lambda whole, *arguments: change(list(whole(*arguments))))(monkeypatch)

    return patch


def other_visible(first: int, end: int) -> Callable[[Patch], None]:
    """A tile's keys start and end elsewhere."""

    def change(whole: Callable[..., tuple[int, int]], *arguments: Any) -> tuple[int, int]:
        found = whole(*arguments)
        return found[0] + first, found[1] + end

    return wrap(tiles, "visible_keys", change)


def fewer_crossed(left: int, right: int) -> Callable[[Patch], None]:
    """Fewer columns are held against the limits; the first of the crossed ranges starts at the tile's first column."""

    def change(whole: Callable[..., list[slice]], *arguments: Any) -> list[slice]:
        crossed = whole(*arguments)
        return [slice(c.start, c.stop - left) if c.start == 0 else slice(c.start + right, c.stop) for c in crossed]

    return wrap(scores, "_crossing", change)


BY_STARTS: dict[str, Callable[[Patch], None]] = {
    "strips are read one column on": wrap(bands, "_reading", lambda whole, strip, *others, **keywords: whole(
        strip[..., 1:], *others, **keywords
    )),
    "margins of clamped and zeroed tables exchanged": wrap(OffsetTable, "rows", lambda whole, table, *others: whole(
        replace(table, beyond={"clamp": "zero", "zero": "clamp"}[table.beyond]), *others
    )),
    "what lies far beyond a clamped table is dropped": wrap(bands.DiagonalBand, "_far", lambda *_: []),
    "limits miss the last column on the left": fewer_crossed(1, 0),
    "limits miss the first column on the right": fewer_crossed(0, 1),
}  # fmt: skip

ANYWHERE: dict[str, Callable[[Patch], None]] = {
    "a patch is one offset late": wrap(scores.QueryTile, "_offsets_on", lambda whole, *others: whole(*others) + 1),
    "a patch is one offset early": wrap(scores.QueryTile, "_offsets_on", lambda whole, *others: whole(*others) - 1),
    "blocks of keys all stand at the first": wrap(
        scores.QueryTile,
        "key_blocks",
        lambda whole, tile, keys, offsets: [
            replace(block, offsets=(offsets if isinstance(offsets, int) else offsets[:, : block.key.shape[1]].t()))
            for block in whole(tile, keys, offsets)
        ],
    ),
    "limits are not looked at within a tile": wrap(scores, "_crossing", lambda *_: []),
    "queries keep their order": wrap(
        scores.Group, "rows", lambda whole, group, tensor, queries: whole(group, tensor, queries).flip(1)
    ),
    "the last chunk of keys is skipped": other_chunks(lambda chunks: chunks[:-1]),
    "the first chunk of keys comes twice": other_chunks(lambda chunks: chunks[:1] + chunks),
    "the last visible key is not visited": other_visible(0, -1),
    "the first visible key is not visited": other_visible(1, 0),
    "all groups of heads share the first one's keys": wrap(
        scores.Group,
        "of",
        lambda whole, problem, heads, *others: whole(
            problem, heads._replace(keys=slice(0, heads.keys.stop - heads.keys.start)), *others
        ),
    ),
    "every group of heads has the first one's rows": wrap(
        bands.Band, "for_heads", lambda whole, band, heads: whole(band, slice(0, heads.stop - heads.start))
    ),
}

PLACES = [(ANYWHERE | BY_STARTS, name, "starts") for name in ANYWHERE | BY_STARTS]
PLACES += [(ANYWHERE, name, "explicit") for name in ANYWHERE]
either_pass = pytest.mark.parametrize(
    ("mutate", "layout"),
    [pytest.param(table[name], layout, id=f"{name}-{layout}") for table, name, layout in PLACES],
)


@either_pass
def test_a_mutated_loop_is_seen(
    mutate: Callable[[Patch], None], layout: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert_red(subject_of(layout, rng), "tiled")


def in_backward(monkeypatch: Patch, mutate: Callable[[Patch], None]) -> None:
    """The mutation holds while the backward pass runs."""

    def change(whole: Callable[..., Any], *arguments: Any) -> Any:
        with Patch.context() as inside:
            mutate(inside)
            return whole(*arguments)

    wrap(operator, "backward", change)(monkeypatch)


@either_pass
def test_a_mutated_loop_is_seen_in_the_gradients(
    mutate: Callable[[Patch], None], layout: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    in_backward(monkeypatch, mutate)
    assert_red(subject_of(layout, rng), "tiled", gradient=r"\S+")


# --- the softmax that moves along the keys


def forget(whole: Callable[..., Any], rows: Any, *arguments: Any) -> None:
    rows.maximum = torch.full_like(rows.maximum, -torch.inf)
    whole(rows, *arguments)


def keep_unscaled(whole: Callable[..., Any], rows: Any, tile_scores: torch.Tensor, *others: Any) -> None:
    """What a later maximum takes away from the older sums is given to them first."""
    raised = torch.maximum(rows.maximum, tile_scores.amax(dim=2, keepdim=True)) - rows.maximum
    raised = raised.nan_to_num(nan=0.0, posinf=0.0).exp2()
    rows.total, rows.weighted = rows.total * raised, rows.weighted * raised
    whole(rows, tile_scores, *others)


def without_total(whole: Callable[..., Any], rows: Any, *arguments: Any) -> None:
    rows.total = torch.zeros_like(rows.total)
    whole(rows, *arguments)


@pytest.mark.parametrize("change", [forget, keep_unscaled, without_total])
def test_a_mutated_softmax_is_seen(change: Callable, rng: np.random.Generator, monkeypatch: Patch) -> None:
    wrap(forward._Rows, "add", change)(monkeypatch)
    assert_red(subject_of("starts", rng), "tiled")


# --- mistakes of the backward pass


def other_answers(**change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Patch], None]:
    """The backward pass starts from something else."""

    def changed(whole: Callable[..., Any], *arguments: Any) -> Any:
        *others, answers, wanted = arguments
        fields = {name: function(getattr(answers, name)) for name, function in change.items()}
        return whole(*others, answers._replace(**fields), wanted)

    return wrap(operator, "backward", changed)


def collected_elsewhere(whole: Callable[..., Any], band: Any, strip: Any, x: Any, start: int, sums: bool) -> Any:
    return whole(band, strip, x, start + 1, sums)


ON_THE_WAY_BACK: dict[str, Callable[[Patch], None]] = {
    "delta without the gradient of lse": other_answers(lse_gradient=torch.zeros_like),
    "delta without the output": other_answers(output=torch.zeros_like),
    "the row maximum of the sign flipped": other_answers(maximum=torch.neg),
    "the total doubled": other_answers(total=lambda total: 2.0 * total),
    "the base of the logarithm left in": lambda monkeypatch: monkeypatch.setattr(backward, "LN_2", 1.0),
    "a table's gradient without what clamping held": wrap(
        bands.Band, "table_gradient", lambda whole, band, table: whole(replace(band, clamps=False), table)
    ),
    "strips land one row on": lambda monkeypatch: in_backward(
        monkeypatch, wrap(bands.Band, "_collect_strip", collected_elsewhere)
    ),
}


@pytest.mark.parametrize("mutation", ON_THE_WAY_BACK)
def test_a_mutated_backward_pass_is_seen(mutation: str, rng: np.random.Generator, monkeypatch: Patch) -> None:
    ON_THE_WAY_BACK[mutation](monkeypatch)
    assert_red(subject_of("starts", rng), "tiled", gradient=r"\S+")


# --- dropout


def slopes(subject: Subject) -> tuple[float, float]:
    """The slope of the dropped answer's sum along random directions of all arrays: by backward, by differences."""
    arrays = list(subject.arrays.values())
    directions = [torch.randn_like(array) for array in arrays]

    def total() -> torch.Tensor:
        seeds.start_torch("dropout")
        return relative_attention(**subject.arguments(), backend="tiled", dropout_p=0.3).sum()

    found = torch.autograd.grad(total(), arrays, allow_unused=True, materialize_grads=True)
    by_backward = sum((g * d).sum().item() for g, d in zip(found, directions, strict=True))
    step, ends = 1e-5, []
    with torch.no_grad():
        for sign in (1.0, -2.0):  # forth, and from there as far back on the other side
            for array, direction in zip(arrays, directions, strict=True):
                array += sign * step * direction
            ends.append(total().item())
    return by_backward, (ends[0] - ends[1]) / (2.0 * step)


def other_seed(whole: Callable[..., Any], problem: Any, sizes: Any, seed: torch.Tensor, *others: Any) -> Any:
    return whole(problem, sizes, seed + 1, *others)


def test_another_mask_in_the_backward_pass_is_seen(rng: np.random.Generator, monkeypatch: Patch) -> None:
    """With another seed; without, derivatives are the differences'."""
    torch.testing.assert_close(*slopes(subject_of("starts", rng)), rtol=1e-6, atol=1e-6)
    wrap(operator, "backward", other_seed)(monkeypatch)
    by_backward, by_differences = slopes(subject_of("starts", rng))
    assert abs(by_backward - by_differences) > 1e-3

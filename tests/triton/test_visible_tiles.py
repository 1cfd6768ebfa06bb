"""Walks that begin and end where the masks that are data let something be seen: the numbers, and the tiles walked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import relative_attention
from relattn.backends.triton.host.call import Call
from relattn.equation.mask import Mask
from relattn.equation.problem import Axis, Problem
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions
from tests.contract.cases import CASES
from tests.contract.padding import assert_padding_does_not_matter
from tests.triton import INTERPRETED, everywhere
from tests.triton.calls import launching, with_ranges
from tests.triton.test_kernels import TABLES, hold_to_the_equation, make_call, random_cotangents, run, visible

tl = pytest.importorskip("triton", reason="Triton is a package for Linux").language
pytest_plugins = ["tests.contract.fresh"]

TILE = 16
"""The tiles of the interpreter."""


@pytest.fixture(autouse=True)
def on_device(device: str, rng):
    """Fresh tensors lie on the device of the test."""
    with torch.device(device):
        yield


def ids(*lengths: int) -> Tensor:
    """Of documents of these lengths, one after the other."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def documents(*rows: tuple[int, ...]) -> dict[str, Any]:
    """One row of documents for each batch element, for queries and keys."""
    of_rows = torch.stack([ids(*lengths) for lengths in rows])
    return {"query_segments": of_rows, "key_segments": of_rows}


def padded(length: int, *kept: tuple[int, int]) -> dict[str, Any]:
    """The keys from .. to - 1 of each batch element are kept."""
    place = torch.arange(length)
    return {"key_mask": torch.stack([(place >= first) & (place < end) for first, end in kept])}


def in_blocks(*lengths: int, dtype: torch.dtype = torch.bool) -> dict[str, Any]:
    """A mask of pairs [1, 1, L, L]: documents of these lengths see themselves alone; the first query sees nothing."""
    seen = ids(*lengths)[:, None] == ids(*lengths)[None, :]
    seen[0] = False
    if dtype == torch.bool:
        return {"pair_mask": seen[None, None]}
    return {"pair_mask": torch.randn(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)[None, None]}


LENGTH = 70
SMALL = {"lengths": (LENGTH, LENGTH), "offset": 0, "batch": 2, "heads": (1, 1), "widths": (16, 16, 16)}
LONG = SMALL | {"lengths": (150, 150), "batch": 1}
MASKS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "documents, every table": (SMALL, lambda: documents((40, 13, 17), (9, 61))),
    "documents, causal": (SMALL | {"tables": TABLES[:1], "highest": 0}, lambda: documents((30, 40), (64, 6))),
    "documents, a window": (
        SMALL | {"tables": TABLES[1::2], "lowest": -9, "highest": 4},
        lambda: documents((30, 40), (17, 53)),
    ),
    "documents that come back": (
        SMALL | {"tables": TABLES[2:3]},
        lambda: {name: each % 2 for name, each in documents((20, 20, 20, 10), (30, 10, 30)).items()},
    ),
    "documents and padding, groups of heads": (
        SMALL | {"heads": (4, 2), "tables": TABLES[:1]},
        lambda: documents((40, 30), (25, 45)) | padded(LENGTH, (5, 60), (0, 70)),
    ),
    "padding on the right, and all of it": (SMALL, lambda: padded(LENGTH, (0, 30), (0, 0))),
    "padding on the left, rows that see nothing": (
        SMALL | {"highest": 0, "tables": TABLES[3:]},
        lambda: padded(LENGTH, (50, 70), (17, 70)),
    ),
    "a mask of blocks": (LONG | {"tables": TABLES[:1]}, lambda: in_blocks(64, 40, 46)),
    "a float mask of blocks": (LONG | {"tables": TABLES[3:]}, lambda: in_blocks(64, 64, 22, dtype=torch.float32)),
    "a mask of each head": (
        LONG | {"heads": (2, 1), "tables": ()},
        lambda: {"pair_mask": torch.cat([in_blocks(*one)["pair_mask"] for one in ((64, 86), (130, 20))], 1)},
    ),
    "few queries": (
        LONG | {"lengths": (3, 150), "offset": -147, "highest": 0, "batch": 2},
        lambda: {
            "query_segments": torch.tensor([[1, 1, 1], [0, 1, 2]]),
            "key_segments": torch.stack([ids(70, 80), ids(20, 30, 100)]),
        } | padded(150, (0, 149), (33, 150)),
    ),
    "a start that is a tensor": (
        SMALL | {"tables": TABLES[:1], "highest": 0},
        lambda: documents((30, 40), (64, 6)) | {"query_segments": torch.stack([ids(50, 20), ids(40, 30)])},
    ),
    "rows of another axis": (
        SMALL | {"lengths": (40, 40), "tables": (), "axes": ({"number": 1},)}, lambda: documents((30, 10), (17, 23)),
    ),
}  # fmt: skip


def call_of(name: str) -> Call:
    given, mask = MASKS[name]
    call = with_ranges(replace(make_call(**given), **mask()))
    return replace(call, offset=torch.tensor(0)) if name == "a start that is a tensor" else call


@everywhere
@pytest.mark.parametrize("name", MASKS)
def test_output_and_every_gradient(name: str, device: str) -> None:
    hold_to_the_equation(call_of(name))


@everywhere
@pytest.mark.parametrize("name", [name for name in MASKS if name != "few queries"])
def test_every_gradient_in_order(name: str, device: str, in_order) -> None:
    hold_to_the_equation(call_of(name))


@everywhere
@pytest.mark.parametrize(("way", "few"), [("segments", 0), ("attn_mask and together", 0), ("key_mask", 8)])
def test_padding_never_matters(way: str, few: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in what nobody sees, with ranges in every call, however small."""
    from relattn.backends.triton.host import lowering
    from relattn.backends.triton.kernels import forward

    monkeypatch.setattr(forward, "MAX_QUERIES", few)
    monkeypatch.setattr(lowering, "PAIRS_OF_RANGES", 0)
    monkeypatch.setattr(lowering, "SIZE", 0)
    assert_padding_does_not_matter(CASES["terms_all"], way, "triton", ["nan"], 0, device)


Tile = tuple[int, int, int, int]
"""The batch element, the head, the first query, and the first key; or the first offset, where programs own offsets."""


def walked(call: Call, monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[Tile]]:
    """How often each kernel of a forward and a backward pass computes the scores of a tile, in the interpreter."""
    from relattn.backends.triton.device import scores
    from relattn.backends.triton.kernels import decoding, diagonals, ordered_axis_grads

    found: dict[str, Counter[Tile]] = defaultdict(Counter)
    kernels = [""]
    finish, places = scores.finish_scores, ordered_axis_grads._places_of_pairs

    def noting(module: Any, name: str) -> None:
        launch = getattr(module, name)

        def noted(kernel: Any, *given: Any, **rest: Any) -> None:
            kernels.append(kernel.__name__)
            launch(kernel, *given, **rest)

        monkeypatch.setattr(module, name, noted)

    def note(*tile: Any) -> None:
        found[kernels[-1]][tuple(int(np.min(each.handle.data)) for each in tile)] += 1  # pyright: ignore[reportArgumentType]

    def noted_scores(x: Any, batch: Any, head: Any, i: Any, j: Any, *given: Any) -> Any:
        if kernels[-1] != "rows_kernel":  # which looks at the positions of a tile first
            note(batch, head, i, j - i if kernels[-1] == "tables_kernel" else j)
        return finish(x, batch, head, i, j, *given)

    def noted_places(x: Any, own: Any, batch: Any, first_query: Any, first_key: Any, TILE: Any) -> Any:
        note(batch, own.head, *(tl.core.to_tensor(each) for each in (first_query, first_key)))
        return places(x, own, batch, first_query, first_key, TILE)

    for module in launching():
        noting(module, "launch")
    noting(decoding, "_launch")
    for module in (scores, decoding, diagonals):
        monkeypatch.setattr(module, "finish_scores", noted_scores)
    monkeypatch.setattr(ordered_axis_grads, "_places_of_pairs", noted_places)
    run(call, *random_cotangents(call))
    return found


WALKS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "documents": ({}, lambda: documents((48, 33, 29), (33, 1, 76))),
    "documents, causal": ({"highest": 0}, lambda: documents((48, 33, 29), (33, 1, 76))),
    "padding on the right": ({}, lambda: padded(110, (0, 50), (0, 16))),
    "padding on the left": ({}, lambda: padded(110, (50, 110), (100, 110))),
    "padding, a window": ({"lowest": -30, "highest": 9}, lambda: padded(110, (0, 50), (67, 110))),
    "documents and padding": ({}, lambda: documents((48, 33, 29), (90, 20)) | padded(110, (5, 81), (30, 110))),
}


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum by one program, as where determinism is asked for."""
    from relattn.backends.triton.kernels import backward

    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: True)


def call_to_walk(name: str, **given: Any) -> tuple[Call, np.ndarray]:
    """The call, and its visible pairs [B, Hq, Lq, Lk]."""
    of_walk, mask = WALKS[name]
    shape = {"lengths": (110, 110), "offset": 0, "batch": 2, "heads": (1, 1), "widths": (16, 16, 16), "tables": ()}
    call = replace(make_call(**{**shape, **of_walk, **given}), **mask())
    seen = visible(call).expand(*call.query.shape[:3], call.key.shape[2])
    return with_ranges(call), seen.numpy()


def in_tiles(pairs: np.ndarray, by_offset: bool = False) -> set[Tile]:
    """The tiles that hold a visible pair."""
    batch, head, i, j = np.nonzero(pairs)
    last = (j - i if by_offset else j) // TILE * TILE
    return set(zip(batch.tolist(), head.tolist(), (i // TILE * TILE).tolist(), last.tolist(), strict=True))


def hold_to_the_goal(walks: Counter[Tile], seen: set[Tile], *, by: int) -> None:
    """All that is visible is walked, once, and for each row of tiles one more at most; by: what tells the rows."""
    assert seen <= set(walks) and set(walks.values()) <= {1}
    rows, of_seen = (Counter((*tile[:2], tile[by]) for tile in tiles) for tiles in (walks, seen))
    assert all(count <= of_seen[row] + 1 for row, count in rows.items())


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize("name", WALKS)
def test_tiles_walked(name: str, device: str, in_order, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of tiles of the programs that own keys is one of queries."""
    call, pairs = call_to_walk(name)
    walks, seen = walked(call, monkeypatch), in_tiles(pairs)
    assert set(walks) == {"forward_kernel", "queries_kernel", "keys_kernel"}
    hold_to_the_goal(walks["forward_kernel"], seen, by=2)
    hold_to_the_goal(walks["queries_kernel"], seen, by=2)
    hold_to_the_goal(walks["keys_kernel"], seen, by=3)


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize("name", ["documents, causal", "padding, a window", "documents and padding"])
def test_tiles_walked_for_tables(name: str, device: str, in_order, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of offsets and a tile of queries are walked where one of these offsets is seen, and nowhere else. Of the
    rows of another axis a program walks over the tiles that the others walk over, and reads their positions.
    """
    table = {"tables": ("bias",), "rows": 320, "first": -160}
    call, pairs = call_to_walk(name, **table)
    walks = walked(call, monkeypatch)["tables_kernel"]
    first = min(offset for *_, offset in walks) % TILE
    moved = np.zeros((*pairs.shape[:3], pairs.shape[3] + TILE), bool)
    moved[..., TILE - first : pairs.shape[3] + TILE - first] = pairs
    seen = {(*tile[:3], tile[3] - TILE + first) for tile in in_tiles(moved, by_offset=True)}
    assert walks == Counter(seen)


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize("name", ["documents", "padding on the left"])
def test_tiles_walked_for_rows_of_axes(name: str, device: str, in_order, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each program that owns rows: its blocks of them are two."""
    axis = {"number": 1, "tables": ("bias",), "rows": 17}
    call, pairs = call_to_walk(name, axes=(axis,))
    walks = walked(call, monkeypatch)["rows_kernel"]
    assert set(walks.values()) == {2}
    hold_to_the_goal(Counter(set(walks)), in_tiles(pairs), by=2)


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize("name", ["documents", "padding on the right"])
def test_tiles_walked_for_the_gradient_of_a_mask(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, pairs = call_to_walk(name)
    added = torch.randn(1, 1, 110, 110)
    walks = walked(with_ranges(replace(call, pair_mask=added)), monkeypatch)["mask_kernel"]
    hold_to_the_goal(walks, in_tiles(pairs), by=2)


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize("blocks", ["boolean", "float"])
def test_tiles_walked_under_a_mask_of_blocks(blocks: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 64, as the mask is read."""
    mask = in_blocks(64, 64, 22, dtype=torch.bool if blocks == "boolean" else torch.float32)
    call = replace(make_call(lengths=(150, 150), offset=0, heads=(1, 1), tables=()), **mask)
    seen = in_tiles(visible(call).numpy())
    for walks in walked(with_ranges(call), monkeypatch).values():
        assert set(walks) == seen


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize("kind", ["documents", "padding"])
def test_tiles_walked_for_few_queries(kind: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many keys as the query sees, and the rest of a tile; in several splits."""
    from relattn.backends.triton.kernels import decoding

    monkeypatch.setattr(decoding, "NUMBERS", 16 * TILE)
    monkeypatch.setattr(decoding, "KEYS_PER_SPLIT", 2 * TILE)
    shape = {"lengths": (5, 110), "offset": -105, "batch": 2, "heads": (1, 1), "widths": (16, 16, 16), "tables": ()}
    mask = documents((48, 60, 2), (33, 1, 76)) if kind == "documents" else padded(110, (0, 51), (70, 110))
    if kind == "documents":
        mask["query_segments"] = mask["query_segments"][:, -5:]
    call = replace(make_call(**shape), **mask)
    seen = visible(call).expand(2, 1, 5, 110).sum(-1).numpy()
    walks = Counter(tile[:3] for tile in walked(with_ranges(call), monkeypatch)["split_keys_kernel"])
    for row, count in np.ndenumerate(seen):
        assert walks[row] == -(-count // TILE)


@pytest.mark.parametrize("device", [INTERPRETED])
def test_what_nobody_sees_is_never_read(device: str, in_order, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in hidden keys, and in queries that see none, in tiles that are walked and in others: the same bits."""
    from relattn.backends.triton.host import lowering

    monkeypatch.setattr(lowering, "PAIRS_OF_RANGES", 0)
    query, key, value, by_output = (torch.randn(1, 1, 110, 16) for _ in range(4))
    kept = torch.arange(110)[None] < 81
    dead = ids(48, 33, 29)[None] == 2  # the third document is padding

    def answers(content: float) -> list[Tensor]:
        leaves = [each.masked_fill(dead[:, None, :, None], content).requires_grad_() for each in (query, key, value)]
        q, k, v = leaves
        output = relative_attention(q, k, v, key_mask=kept, segment_ids=ids(48, 33, 29)[None], backend="triton")
        return [output.detach(), *torch.autograd.grad((output * by_output).sum(), leaves)]

    for found, expected in zip(answers(torch.nan), answers(0.0), strict=True):
        assert torch.equal(found, expected) and found.isfinite().all() and (found[:, :, 81:] == 0).all()


@pytest.mark.parametrize("device", ["cpu"])
def test_which_calls_look_for_ranges(device: str) -> None:
    """Large ones with a mask that is data: from lengths and masks that are there, without a look at any number."""
    from relattn.backends.triton.host import lowering

    def ranges(queries: int, keys: int, heads: int = 1, **masks: Any) -> bool:
        query, key = torch.empty(1, heads, queries, 1), torch.empty(1, heads, keys, 1)
        positions = Positions(ContiguousPositions(0), ContiguousPositions(0), queries, keys, query.device)
        problem = Problem(query, key, key, (Axis(positions),), Mask(positions, **masks), 1.0, torch.float32)
        return lowering.call_of(problem, None).visible is not None

    def kept(keys: int) -> Tensor:
        return torch.ones(1, keys, dtype=torch.bool)

    many = lowering.PAIRS_OF_RANGES
    assert ranges(1024, many // 1024, key_mask=kept(many // 1024))
    assert ranges(1, 2**15, heads=many // 2**15, key_mask=kept(2**15))
    assert ranges(1024, 1024, segments=(ids(1024)[None], ids(1000, 24)[None]))
    assert ranges(1024, 1024, pairs=torch.ones(1, 1, 1024, 1024, dtype=torch.bool))
    assert not ranges(1024, 1024)
    assert not ranges(1023, many // 1024, key_mask=kept(many // 1024))
    assert not ranges(many // 64, 64, key_mask=kept(64))

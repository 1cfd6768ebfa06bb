"""What is masked away, and what lies beyond a clipped table, is not computed: counted, not timed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import OffsetTable, ScoreTerms, attention_weights, relative_attention
from relattn.backends.tiled import operator
from relattn.backends.tiled.bands import Band
from relattn.backends.tiled.scores import QueryTile
from relattn.backends.tiled.sizes import TileSizes

LENGTH, TILE = 96, TileSizes(queries=8, keys=16, key_heads=1)


def inputs(length: int, requires_grad: bool = True) -> list[Tensor]:
    """Query, key and value of one head; equal scores, so that no visible weight vanishes."""
    return [torch.zeros(1, 1, length, 2, requires_grad=requires_grad) for _ in range(3)]


def count_pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pairs of every tile whose scores are computed from now on."""
    counts, scores = [], QueryTile.scores

    def counted(tile: QueryTile, keys: slice) -> Tensor | None:
        found = scores(tile, keys)
        if found is not None:
            counts.append(found[0].numel())
        return found

    monkeypatch.setattr(QueryTile, "scores", counted)
    return counts


def segments(*lengths: int) -> Tensor:
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).unsqueeze(0)


def keep(first: int, end: int) -> Tensor:
    return ((torch.arange(LENGTH) >= first) & (torch.arange(LENGTH) < end)).unsqueeze(0)


POSITIONS = torch.arange(LENGTH)
# What hides pairs, and the share of all pairs that a tile loop then needs, edges of tiles included.
HIDING: dict[str, tuple[dict[str, Any], float]] = {
    "nothing": ({}, 1.0),
    "causal": ({"is_causal": True}, 0.55),
    "causal, queries later": ({"is_causal": True, "query_position": 40}, 0.87),
    "causal, queries earlier": ({"is_causal": True, "query_position": -40}, 0.25),
    "window": ({"window": (10, 3)}, 0.22),
    "causal window": ({"window": (10, None), "is_causal": True}, 0.19),
    "a window on one side": ({"window": (10, None)}, 0.65),
    "segments": ({"segment_ids": segments(20, 30, 6, 40)}, 0.4),
    "causal segments": ({"segment_ids": segments(20, 30, 6, 40), "is_causal": True}, 0.25),
    "keys padded on the left": ({"key_mask": keep(70, LENGTH)}, 0.28),
    "keys padded on the right": ({"key_mask": keep(0, 26)}, 0.28),
    "causal keys padded on both sides": ({"key_mask": keep(30, 60), "is_causal": True}, 0.25),
    "no key at all": ({"key_mask": keep(0, 0)}, 0.0),
}


def needed(visible: Tensor) -> int:
    """For every tile of queries, the keys from the first to the last that any of them sees."""
    total = 0
    for rows in visible.split(TILE.queries):
        keys = rows.any(dim=0).nonzero()
        total += len(rows) * (int(keys[-1] - keys[0]) + 1) if len(keys) else 0
    return total


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("hiding", HIDING)
def test_pairs_beyond_the_visible_are_not_computed(hiding: str, explicit: bool, monkeypatch) -> None:
    """Neither forward nor backward; positions given one by one are looked through for it."""
    monkeypatch.setattr(operator, "tile_sizes", lambda problem: TILE)
    arguments, share = HIDING[hiding]
    if explicit:
        start = arguments.get("query_position", 0)
        arguments = {**arguments, "query_position": POSITIONS + start, "key_position": POSITIONS}
    visible = attention_weights(*inputs(LENGTH), **arguments)[0, 0] > 0
    bound = needed(visible)
    assert bound <= share * LENGTH**2
    counts = count_pairs(monkeypatch)
    output = relative_attention(*inputs(LENGTH), **arguments, backend="tiled")
    assert visible.sum() <= sum(counts) <= bound
    counts.clear()
    output.sum().backward()
    assert visible.sum() <= sum(counts) <= bound


def test_a_chunk_hidden_between_visible_keys_is_not_computed(monkeypatch) -> None:
    monkeypatch.setattr(operator, "tile_sizes", lambda problem: TILE)
    counts = count_pairs(monkeypatch)
    relative_attention(*inputs(LENGTH), key_mask=~keep(10, 90), backend="tiled").sum().backward()
    assert sum(counts) == 2 * LENGTH * 2 * TILE.keys, "forward and backward, the first chunk and the last"


def test_a_window_of_a_long_sequence_costs_its_share(monkeypatch) -> None:
    """With the tiles that the backend chooses: at most twice the pairs in the window."""
    length, window = 8192, 256
    counts = count_pairs(monkeypatch)
    relative_attention(*inputs(length, False), window=(window - 1, 0), backend="tiled")
    assert 0.9 * length * window < sum(counts) <= 2.0 * length * window


# --- clipped tables


def count_strips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers in every product of rows with a band, and in every band of weights, from now on.

    Less those one column wide: what a vector costs.
    """
    counts, strip, collect = [], Band._strip, Band._collect_strip

    def made(band: Band, x: Tensor, start: int, width: int) -> Tensor:
        counts.append(x.shape[1] * width)
        return strip(band, x, start, width)

    def collected(band: Band, weights: Tensor, *others: Any) -> Tensor | None:
        counts.append(weights[0].numel() if weights.shape[2] > 1 else 0)
        return collect(band, weights, *others)

    monkeypatch.setattr(Band, "_strip", made)
    monkeypatch.setattr(Band, "_collect_strip", collected)
    return counts


def strips(name: str, reach: int, beyond: Any, length: int, counts: list[int]) -> int:
    """How much a training step multiplies with the bands of one table of offsets -reach..reach."""
    query, key, value = inputs(length)
    table = OffsetTable(torch.zeros(1, 2 * reach + 1, 2, requires_grad=True), -reach, beyond)
    extra: dict[str, Any] = {"relative_query": torch.zeros_like(query)} if name == "relative_keys" else {}
    counts.clear()
    terms = ScoreTerms(**extra, **{name: table})
    relative_attention(query, key, value, encoding=terms, backend="tiled").sum().backward()
    return sum(counts)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("beyond", ["clamp", "zero"])
@pytest.mark.parametrize("name", ["relative_keys", "relative_queries", "relative_values"])
def test_beyond_a_clipped_table_no_product_is_made(name: str, beyond: str, monkeypatch) -> None:
    """Twice the length is twice the rows near the diagonal; without clipping it is four times the pairs.

    Per row of the matrix: the offsets inside, the edges of a tile of queries, and the rounding up of every strip.
    """
    monkeypatch.setattr(operator, "tile_sizes", lambda problem: TILE)
    counts = count_strips(monkeypatch)
    short, long = (strips(name, 3, beyond, length, counts) for length in (128, 256))
    assert 0 < long <= 2.1 * short
    wide_short, wide_long = (strips(name, length - 1, beyond, length, counts) for length in (128, 256))
    assert wide_long >= 3.5 * wide_short

"""Packed and padded sequences over four ranks: what sees nothing is neither sent nor computed, and all numbers stay.

Parts and messages are counted beside a count over pairs that knows nothing of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from relattn.backends.select import BACKENDS
from relattn.distributed import attention, choose
from relattn.distributed.group import Group
from relattn.distributed.ring_backward import Backward
from tests import seeds
from tests.distributed.draw import HEADS, WIDTH, Drawn, check
from tests.distributed.ranks import Ranks

WORLD, LENGTH, SHARE = 4, 32, 4
"""A part has SHARE queries, and a round SHARE keys of each rank."""


def documents(*lengths: int) -> np.ndarray:
    return np.repeat(np.arange(len(lengths)), lengths)


def one_pair(query: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Only these two have the same id, so that all other queries see nothing."""
    ids = np.arange(LENGTH), np.arange(LENGTH) + LENGTH
    ids[1][key] = query
    return ids


def of_both(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return ids, ids


PADDED = np.arange(LENGTH) < np.array([[20], [32]])
CASES: dict[str, tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray | None]] = {
    "in order": ([of_both(documents(*[4] * 8))] * 2, None),
    "across borders": ([of_both(documents(2, 10, 2, 5, 7, 6)), of_both(documents(15, 17))], None),
    "ids come back": ([of_both(np.tile(documents(3, 5), 4)), of_both(documents(10, 10, 12) % 2)], None),
    "padded": ([of_both(documents(5, 15, 12)), of_both(documents(9, 15, 8))], PADDED),
    "far forward": ([one_pair(LENGTH - 1, 0)] * 2, None),
    "far back": ([one_pair(0, LENGTH - 1)] * 2, None),
    "two steps": ([one_pair(LENGTH // 2, 0)] * 2, None),
    "nothing": ([(np.zeros(LENGTH, int), np.ones(LENGTH, int))] * 2, None),
}
"""The ids of queries and keys, for both elements of the batch, and key_mask."""


def packed(name: str, layout: str, rotate: str, encoding: str, is_causal: bool) -> Drawn:
    rng = seeds.generator("packed", name, layout, rotate)
    ids, kept = CASES[name]
    call = Drawn(WORLD, layout, rotate, encoding, (LENGTH, LENGTH), fewest=SHARE)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    call.moved = {one: normal(2, HEADS if one == "query" else 2, LENGTH, WIDTH) for one in ("query", "key", "value")}
    module = call.encoding()
    if module is not None:
        call.moved |= {f"encoding.{one}": normal(*p.shape).abs() * 0.5 + 0.1 for one, p in module.named_parameters()}
    call.moved["key_bias"] = normal(2, HEADS, LENGTH)
    call.options = {"enable_gqa": True, "is_causal": is_causal}
    sides = (torch.from_numpy(np.stack(side)) for side in zip(*ids, strict=True))
    call.fixed = dict(zip(("query_segments", "key_segments"), sides, strict=True))
    if kept is not None:
        call.fixed["key_mask"] = torch.from_numpy(kept)
    return call


@contextmanager
def counting() -> Iterator[dict[str, Any]]:
    """Counts a step's parts, forward and backward, and the bytes that were sent, and keeps what was chosen."""
    counts: dict[str, Any] = {"part": 0, "gradients": 0}
    groups: list[Group] = []

    def group(*arguments: Any) -> Group:
        groups.append(Group(*arguments))
        return groups[-1]

    def chosen(*arguments: Any) -> Any:
        counts["choice"] = choose.choose(*arguments)
        return counts["choice"]

    def run(self: Backward) -> Any:
        counts["forward"] = groups[-1].sent
        return backward(self)

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def method_and_count(*arguments: Any) -> Any:
            counts[name] += 1
            return method(*arguments)

        return method_and_count

    backward, backend = Backward.run, type(BACKENDS["tiled"])
    with ExitStack() as stack:
        for owner, name, counting_one in (
            (attention, "Group", group),
            (attention, "choose", chosen),
            (Backward, "run", run),
            (backend, "part", counted("part", backend.part)),
            (backend, "gradients", counted("gradients", backend.gradients)),
        ):
            stack.enter_context(mock.patch.object(owner, name, counting_one))
        yield counts
    counts["sent"] = groups[-1].sent


def step(rank: int, *case: Any) -> tuple[int, int, int, int, str, tuple[int, int]]:
    """Compares a step with that of one process. Parts and bytes forward and backward, the way, and the bytes that were
    foretold."""
    call = packed(*case)
    with counting() as counts:
        check(call, [torch.float64])
    choice, forward = counts["choice"], counts.get("forward", 0)
    bytes_of = choice.sent[choice.rotate]
    return counts["part"], counts["gradients"], forward, counts["sent"] - forward, choice.rotate, tuple(bytes_of)


def held(layout: str) -> list[list[np.ndarray]]:
    """The pieces of every rank, as the numbers of their elements."""
    if layout == "contiguous":
        return [[piece] for piece in np.split(np.arange(LENGTH), WORLD)]
    of_all = np.split(np.arange(LENGTH), 2 * WORLD)
    return [[of_all[rank], of_all[-1 - rank]] for rank in range(WORLD)]


def expected(name: str, layout: str, is_causal: bool) -> tuple[list[int], np.ndarray]:
    """The parts of each rank, and [queries' rank, keys' rank, round]: whether keys are needed."""
    ids, kept = CASES[name]
    own = held(layout)
    size = SHARE // len(own[0])
    needed = np.zeros((WORLD, WORLD, LENGTH // WORLD // SHARE), bool)
    parts = [0] * WORLD
    for rank, source in product(range(WORLD), range(WORLD)):
        for queries, keys in product(own[rank], own[source]):
            for q, (number, k) in product(queries.reshape(-1, SHARE), enumerate(keys.reshape(-1, size))):
                if sees(ids, kept, q, k, is_causal):
                    parts[rank] += 1
                    needed[rank, source, number] = True
    return parts, needed


def sees(ids: Any, kept: np.ndarray | None, q: np.ndarray, k: np.ndarray, is_causal: bool) -> bool:
    """Whether ranges of ids overlap in some row of the batch. Where ids ascend this is whether some id is in both."""
    if is_causal and k[0] > q[-1]:
        return False
    for row, (query_ids, key_ids) in enumerate(ids):
        there = key_ids[k] if kept is None else key_ids[k[kept[row, k]]]
        if there.size and query_ids[q].min() <= there.max() and query_ids[q].max() >= there.min():
            return True
    return False


def bytes_beside(name: str) -> tuple[int, int]:
    """Of key_bias, segment ids and key_mask, which all ranks get whole, by one rank."""
    bias, others = 2 * HEADS * LENGTH // WORLD * 8, 2 * LENGTH // WORLD * (8 + (CASES[name][1] is not None))
    return (WORLD - 1) * (bias + others), (WORLD - 1) * bias


@pytest.mark.pairs
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("name", CASES)
def test_the_ring_sends_and_computes_what_is_visible(name: str, layout: str, is_causal: bool, four: Ranks) -> None:
    found = four(step, name, layout, "ring", "Shaw + ALiBi", is_causal)
    parts, gradients, forward, backward, _, foretold = zip(*found, strict=True)
    expected_parts, needed = expected(name, layout, is_causal)
    assert list(parts) == list(gradients) == expected_parts
    key = 2 * 2 * 2 * WIDTH * 8 * SHARE  # a round's keys and values of both elements of the batch and both heads
    away = needed & ~np.eye(WORLD, dtype=bool)[:, :, None]
    followed = [needed[(rank + 1) % WORLD, rank].sum() for rank in range(WORLD)]  # by sums of the owner
    beside = bytes_beside(name)
    assert sum(forward) == WORLD * beside[0] + key * away.sum()
    assert sum(backward) == WORLD * beside[1] + key * (2 * away.sum() + sum(followed))
    assert {(max(forward), max(backward))} == set(foretold)

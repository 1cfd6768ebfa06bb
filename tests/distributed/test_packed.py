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
from torch import Tensor

from relattn import relative_attention
from relattn.backends.blocks import BlocksBackend
from relattn.distributed import attention, choose, context_parallel_attention, explain, ring_schedule, split
from relattn.distributed.group import Group
from relattn.distributed.parts import Layout
from relattn.distributed.ring_backward import Backward
from tests import seeds
from tests.distributed.draw import HEADS, WIDTH, Drawn, check, mesh_of
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
    key_heads = HEADS if rotate == "ulysses" else 2
    call = Drawn(WORLD, layout, rotate, encoding, (LENGTH, LENGTH), fewest=SHARE)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    call.moved = {
        one: normal(2, HEADS if one == "query" else key_heads, LENGTH, WIDTH) for one in ("query", "key", "value")
    }
    module = call.encoding()
    if module is not None:
        call.moved |= {f"encoding.{one}": normal(*p.shape).abs() * 0.5 + 0.1 for one, p in module.named_parameters()}
    call.moved["key_bias"] = normal(2, HEADS, LENGTH)
    call.options = {"enable_gqa": key_heads != HEADS, "is_causal": is_causal}
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

    backward, backend = Backward.run, BlocksBackend
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


@pytest.mark.one_in(6)
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
    assert {tuple(-(-sum(sent) // WORLD) for sent in (forward, backward))} == set(foretold)


@pytest.mark.parametrize(("name", "layout"), [("across borders", "zigzag"), ("padded", "contiguous")])
@pytest.mark.parametrize("rotate", ["all_gather", "ulysses"])
def test_other_ways_have_the_same_numbers(name: str, layout: str, rotate: str, four: Ranks) -> None:
    for *_, way, _ in four(step, name, layout, rotate, "Shaw + ALiBi", True):
        assert way == rotate


def dropped(rank: int, name: str, layout: Layout, moved: str) -> float:
    """How far a step with dropout, where only these tensors have a gradient, is from that of one process."""
    mesh = mesh_of(WORLD)
    drawn = packed(name, layout, "ring", "none", False)
    whole = {one: drawn.moved[one].double().requires_grad_(one in moved) for one in ("query", "key", "value")}
    toward = torch.from_numpy(seeds.generator("packed", "toward").normal(size=whole["query"].shape))
    ids = drawn.fixed["query_segments"], drawn.fixed["key_segments"]

    def step_of(attend: Any, tensors: dict[str, Tensor], toward: Tensor, ids: Any, **options: Any) -> list[Tensor]:
        torch.manual_seed(seeds.seed("packed dropout"))
        output = attend(*tensors.values(), dropout_p=0.3, enable_gqa=True, segment_ids=ids, backend="blocks", **options)
        return [
            output.detach(),
            *torch.autograd.grad(output, [one for one in tensors.values() if one.requires_grad], toward),
        ]

    def part(tensor: Tensor, dim: int = 2) -> Tensor:
        return split(tensor.detach(), mesh, dim=dim, layout=layout)

    expected = step_of(relative_attention, whole, toward, ids)
    own = {one: part(tensor).requires_grad_(tensor.requires_grad) for one, tensor in whole.items()}
    with mock.patch.object(ring_schedule, "FEWEST", SHARE):
        found = step_of(
            context_parallel_attention, own, part(toward), tuple(part(side, 1) for side in ids), mesh=mesh,
            layout=layout, rotate="ring",
        )  # fmt: skip
    return max((one - part(other)).abs().max().item() for one, other in zip(found, expected, strict=True))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "layout", "moved"),
    [
        ("in order", "contiguous", "query"),
        ("across borders", "zigzag", "query key value"),
        ("ids come back", "contiguous", "key"),
        ("far back", "zigzag", "value"),
    ],
)
def test_dropout_and_what_has_no_gradient(name: str, layout: Layout, moved: str, four: Ranks) -> None:
    assert max(four(dropped, name, layout, moved)) < 1e-12


def chosen(rank: int, name: str) -> tuple[str, list[str], str, bool]:
    """What `explain` says, and what was chosen once the ranks had told each other what they see."""
    mesh, drawn = mesh_of(WORLD), packed(name, "contiguous", "ulysses", "none", False)
    query, key, value = (split(drawn.moved[one], mesh, dim=2, layout="contiguous") for one in ("query", "key", "value"))
    ids = tuple(split(drawn.fixed[f"{side}_segments"], mesh, dim=1, layout="contiguous") for side in ("query", "key"))
    options: dict[str, Any] = {"mesh": mesh, "layout": "contiguous", "segment_ids": ids}
    with counting() as counts:
        context_parallel_attention(query, key, value, **options)
    said, took = explain(query, key, value, **options), counts["choice"]
    assert counts["sent"] == took.sent[took.rotate].forward or took.rotate == "ulysses"
    return said.rotate, str(said).splitlines(), took.rotate, took.is_bound


def test_auto_takes_the_ring_where_masks_spare_it_enough(four: Ranks) -> None:
    of_ranks = four(chosen, "in order")
    assert all(one == of_ranks[0] for one in of_ranks)
    said, lines, took, is_bound = of_ranks[0]
    assert (said, took, is_bound) == ("ulysses", "ring", False)
    beside = 3 * 2 * LENGTH // WORLD * 8
    chunk = 2 * HEADS * LENGTH // WORLD * 2 * WIDTH * 4
    assert lines[1] == (
        "ring: taken if key_mask or segment_ids hide so much that it sends no more than ulysses; "
        f"a rank sends on average at most {3 * chunk + beside:,} bytes forward and {7 * chunk:,} backward"
    )
    assert four(chosen, "ids come back")[0][2] == "ulysses"


def empty(rank: int, batch: int, queries: int, keys: int) -> tuple[list[int], bool]:
    query, key, value = (torch.ones(batch, 2, n, 4, requires_grad=True) for n in (queries, keys, keys))
    ids = torch.zeros(batch, queries, dtype=torch.int32), torch.zeros(batch, keys, dtype=torch.int32)
    found = context_parallel_attention(
        query, key, value, mesh=mesh_of(WORLD), rotate="ring", segment_ids=ids, key_mask=ids[1] == 0, is_causal=True
    )
    found.sum().backward()
    gradients = [one.grad for one in (query, key, value)]
    return list(found.shape), not found.any() and not any(one.any() for one in gradients if one is not None)


@pytest.mark.parametrize("sizes", [(0, 4, 4), (1, 0, 4), (1, 4, 0)])
def test_nothing_to_send(sizes: tuple[int, int, int], four: Ranks) -> None:
    batch, queries, _ = sizes
    assert four(empty, *sizes) == [([batch, 2, queries, 4], True)] * WORLD

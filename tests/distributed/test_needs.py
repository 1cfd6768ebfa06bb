"""The messages of the ring: what one rank sends another expects, and everybody gets what it needs, once."""

from __future__ import annotations

import operator

import pytest

from relattn.distributed.needs import ALL, Needs
from tests import seeds

LENGTHS = [4, 4, 3]


def drawn(world: int, number: int) -> Needs:
    rng = seeds.generator("needs", world, number)
    density = rng.random()
    bits = (rng.random((world, world, len(LENGTHS))) < density) @ [1, 2, 4]
    return Needs([[ALL, *map(int, row[1:])] for row in bits])


def needers(needs: Needs, owner: int, number: int) -> set[int]:
    world = len(needs.rows)
    return {(owner + d) % world for d in range(1, world) if needs.has(owner + d, d, number)}


def chunks_sent(needs: Needs, number: int) -> int:
    """How many chunks the ranks send in a round, where every message is awaited and everybody gets its own."""
    world = len(needs.rows)
    sent, here, got = 0, {rank: rank for rank in range(world)}, set()
    for step in range(needs.steps(number)):
        messages, awaited = [], []
        for rank in range(world):
            on, direct, source = needs.chunk_messages(rank, step, number)
            if on:
                messages.append((rank, (rank + 1) % world, here[rank]))
            if direct is not None:
                messages.append((rank, (rank + direct) % world, rank))
            if source is not None:
                awaited.append(((rank - source) % world, rank, (rank - step - 1) % world))
        assert sorted(messages) == sorted(awaited)
        here = {to: chunk for _, to, chunk in messages}
        got |= {(to, chunk) for _, to, chunk in messages}
        sent += len(messages)
    assert got == {(rank, owner) for owner in range(world) for rank in needers(needs, owner, number)}
    return sent


def sums_sent(needs: Needs, number: int) -> int:
    """How many sums the ranks send in a round, where the owner of every chunk gets those of all that need it."""
    world = len(needs.rows)
    sent, arrived = 0, {}
    owned = {rank: [] for rank in range(world)}
    for step in range(needs.steps(number)):
        here = {rank: [*arrived.get(rank, []), rank] for rank in range(world) if needs.has(rank, step, number)}
        messages, awaited = [], []
        for rank in range(world):
            to, follows, returns = needs.sum_messages(rank, step, number)
            assert (to is not None) == (rank in here)
            if to == 0:
                owned[rank] += here[rank]
            elif to is not None:
                messages.append((rank, (rank + to) % world, to == 1))
            if follows:
                awaited.append(((rank - 1) % world, rank, True))
            if returns:
                awaited.append(((rank + step) % world, rank, False))
        assert sorted(messages) == sorted(awaited)
        arrived = {to: here[rank] for rank, to, follows in messages if follows}
        sent += len(messages)
        for rank, to, follows in messages:
            if not follows:
                owned[to] += here[rank]
    assert not arrived
    assert all(sorted(owned[owner]) == sorted({owner} | needers(needs, owner, number)) for owner in range(world))
    return sent


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_every_message_is_awaited_and_counted(world: int) -> None:
    for needs in [drawn(world, number) for number in range(40)] + [Needs.within(world, hops) for hops in range(world)]:
        of_rounds = [(chunks_sent(needs, number), sums_sent(needs, number)) for number in range(len(LENGTHS))]
        chunks, sums = (sum(map(operator.mul, of_way, LENGTHS)) for of_way in zip(*of_rounds, strict=True))
        assert needs.sent(LENGTHS) == (chunks, sums)


def test_where_all_need_all_a_chunk_goes_from_neighbour_to_neighbour() -> None:
    assert [Needs.within(4, 3).chunk_messages(2, step, 0) for step in range(4)] == [(True, None, 1)] * 3 + [
        (False, None, None)
    ]
    assert Needs.within(4, 3).sent([5]) == (4 * 15, 4 * 20)
    assert Needs.within(4, 0).sent([5]) == (0, 0)

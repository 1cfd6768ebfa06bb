"""Digits and grids by arithmetic, against every element counted out; several axes as one number; prefix tokens."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch

from relattn import GridPositions, grid
from relattn.checks.positions import places_of
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.places import JointPositions, Places
from relattn.positions.positions import Positions

CPU = torch.device("cpu")
NO_LIMITS = (None, None)


def digits_of(rng: np.random.Generator, prefix_tokens: int = 0) -> GridPositions:
    """Any digits: steps of both signs and zero, repeats that divide nothing."""
    terms = tuple(
        (int(rng.integers(-3, 4)), int(rng.integers(1, 6)), int(rng.integers(1, 5)))
        for _ in range(int(rng.integers(0, 4)))
    )
    start, first = int(rng.integers(-5, 6)), int(rng.integers(0, 40))
    return GridPositions(terms, start=start, first=first, prefix_tokens=prefix_tokens, off_grid=-1000)


def counted(digits: GridPositions, length: int) -> list[int]:
    """The definition, element by element."""
    found = []
    for element in range(length):
        if element < digits.prefix_tokens:
            found.append(digits.off_grid)
            continue
        i = element - digits.prefix_tokens + digits.first
        found.append(digits.start + sum(step * ((i // repeat) % count) for step, repeat, count in digits.terms))
    return found


def many(rng: np.random.Generator, count: int = 200) -> Iterator[GridPositions]:
    """Of them, some with prefix tokens."""
    for _ in range(count):
        yield digits_of(rng, int(rng.integers(0, 4)) * int(rng.integers(0, 2)))


def test_digits_are_their_definition(rng):
    for digits in many(rng):
        length = int(rng.integers(0, 30))
        assert digits.expand(length, CPU).tolist() == counted(digits, length)


def test_a_part_is_the_same_elements_and_so_is_a_part_of_it(rng):
    for digits in many(rng):
        whole, part, start, stop = counted(digits, 40), digits, 0, 40
        for _ in range(4):
            a, b = sorted(int(n) for n in rng.integers(0, stop - start + 1, 2))
            part, start, stop = part.part(slice(a, b)), start + a, start + b
            assert part.expand(stop - start, CPU).tolist() == whole[start:stop]
            assert part.part(slice(0, 0), batch=1) == part  # the same in every batch element


def test_the_extent_holds_every_position(rng):
    """Of a single digit it is the least and the largest of them."""
    single = 0
    for digits in many(rng, 400):
        length = int(rng.integers(1 + digits.prefix_tokens, 30))
        lowest, highest = digits.extent(length)
        standing = counted(digits, length)[digits.prefix_tokens :]
        assert lowest <= min(standing) and max(standing) <= highest
        assert lowest >= digits.start + sum(min(0, step * (count - 1)) for step, _, count in digits.terms)
        assert highest <= digits.start + sum(max(0, step * (count - 1)) for step, _, count in digits.terms)
        if len(digits.terms) == 1:
            single += 1
            assert (lowest, highest) == (min(standing), max(standing))
    assert single > 50


def test_the_extent_of_a_part_of_one_row_is_exact():
    x = grid(4, 6)["x"]
    assert x.part(slice(7, 10)).extent(3) == (1, 3)
    assert x.part(slice(4, 8)).extent(4) == (0, 5)  # over the end of a row: 4, 5, 0, 1
    assert grid(4, 6)["y"].part(slice(7, 18)).extent(11) == (1, 2)


def test_digits_count_as_in_next(rng):
    """start + sum_n step_n * (((i + first) // repeat_n) % length_n), keywords for start and first."""
    digits = GridPositions(((10, 3, 2), (1, 1, 3)), start=100, first=1)
    assert digits.expand(7, CPU).tolist() == [101, 102, 110, 111, 112, 100, 101]
    assert GridPositions([[1, 1, 4]]) == GridPositions(((1, 1, 4),))
    assert GridPositions(()).expand(3, CPU).tolist() == [0, 0, 0]


# --- grids


@pytest.mark.parametrize("sizes", [(5,), (2, 3), (1, 4), (3, 2, 4), (2, 1, 1)], ids=str)
@pytest.mark.parametrize("prefix_tokens", [0, 1, 3])
def test_a_grid_is_row_major(sizes, prefix_tokens):
    names = ("t", "y", "x")[-len(sizes) :]
    axes = grid(*sizes, prefix_tokens=prefix_tokens)
    assert tuple(axes) == names
    places = np.array(list(product(*map(range, sizes))))
    for name, column in zip(names, places.T, strict=True):
        digits = axes[name]
        assert digits.count == prefix_tokens + len(places) and digits.prefix_tokens == prefix_tokens
        assert digits.expand(digits.count, CPU).tolist()[prefix_tokens:] == column.tolist()


def test_parts_of_a_grid_are_its_tokens(rng):
    for _ in range(60):
        sizes, prefix_tokens = tuple(int(n) for n in rng.integers(1, 5, 3)), int(rng.integers(0, 4))
        whole = {
            name: digits.expand(digits.count, CPU) for name, digits in grid(*sizes, prefix_tokens=prefix_tokens).items()
        }
        total = prefix_tokens + int(np.prod(sizes))
        first = int(rng.integers(0, total + 1))
        length = int(rng.integers(0, total - first + 1))
        part = grid(*sizes, prefix_tokens=prefix_tokens, first=first, length=length)
        rest = grid(*sizes, prefix_tokens=prefix_tokens, first=first)
        for name, digits in part.items():
            assert digits.count == length and rest[name].count == total - first
            assert digits.prefix_tokens == max(prefix_tokens - first, 0)
            assert torch.equal(digits.expand(length, CPU), whole[name][first : first + length])
            assert torch.equal(rest[name].expand(total - first, CPU), whole[name][first:])


def test_names_of_a_grid():
    assert list(grid(2, 2, 2, 2, names=("batch", "t", "y", "x"))) == ["batch", "t", "y", "x"]
    assert list(grid(2, names=["width"])) == ["width"]


# --- places


def places(query, key, lengths: tuple[int, int], batch: int = 2) -> Places:
    return places_of(query, key, (batch,), lengths, CPU, NO_LIMITS)


def test_without_a_mapping_there_is_the_sequence_alone():
    by_axis = places(3, 4, (5, 6)).by_axis
    assert list(by_axis) == ["sequence"]
    assert (by_axis["sequence"].query, by_axis["sequence"].key) == (ContiguousPositions(3), ContiguousPositions(4))


def test_the_sequence_starts_at_0_beside_others():
    by_axis = places({"x": 2}, {"x": 0, "sequence": 4}, (5, 6)).by_axis
    assert (by_axis["sequence"].query, by_axis["sequence"].key) == (ContiguousPositions(0), ContiguousPositions(4))
    assert by_axis["x"].visible == (0 - 2 - 4, 0 + 5 - 2)


def test_digits_on_the_sequence_are_written_down():
    sequence = places(grid(2, 3)["x"], GridPositions(((1, 2, 9),)), (6, 4)).sequence
    assert isinstance(sequence.query, ExplicitPositions) and sequence.query.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert isinstance(sequence.key, ExplicitPositions) and sequence.key.positions.tolist() == [0, 0, 1, 1]


def brute(positions: Positions) -> tuple[np.ndarray, np.ndarray]:
    """The offset of every pair, and whether both stand, [*B, Lq, Lk]."""
    lengths = positions.query_length, positions.key_length
    stand = [np.arange(n) >= lead for n, lead in zip(lengths, positions.prefix_tokens, strict=True)]
    return positions.offsets().numpy(), stand[0][:, None] & stand[1][None, :]


def any_side(rng: np.random.Generator, length: int):
    kind = rng.integers(0, 4)
    if kind == 0:
        return int(rng.integers(-4, 5))
    if kind == 1:
        return torch.tensor(int(rng.integers(-4, 5)))
    if kind == 2:
        return torch.from_numpy(rng.integers(-6, 7, (2, length) if rng.integers(2) else length))
    return digits_of(rng, int(rng.integers(0, min(length, 2) + 1)))


def test_visible_offsets_hold_every_pair_that_stands(rng):
    for _ in range(200):
        lengths = int(rng.integers(1, 7)), int(rng.integers(1, 7))
        positions = places({"z": any_side(rng, lengths[0])}, {"z": any_side(rng, lengths[1])}, lengths).by_axis["z"]
        offsets, standing = brute(positions)
        first, last = positions.visible
        inside = (offsets >= first) & (offsets <= last)
        assert np.array_equal(inside, np.broadcast_to(standing, inside.shape))
        explicit = not any(isinstance(side, GridPositions) for side in (positions.query, positions.key))
        if standing.any() and explicit:
            assert (first, last) == (offsets.min(), offsets.max())


def test_pairs_with_a_prefix_token_lie_apart(rng):
    """Below every offset where the query leads, far above where the key does, and just above where both do."""
    where = grid(2, 3, prefix_tokens=2)
    for positions in (places(where, where, (8, 8)).by_axis["y"], places(where, where, (8, 8)).on(("y", "x"), "a test")):
        first, last = positions.visible
        offsets = positions.offsets()
        assert (offsets[:2, 2:] < first - 1).all()
        assert (offsets[2:, :2] > last + 2).all()
        assert (offsets[:2, :2] == last + 1).all()


@pytest.mark.parametrize(("query", "key"), [((0, 2), (0, 8)), ((0, 8), (0, 2)), ((1, 1), (0, 1))], ids=str)
def test_prefix_tokens_alone_lie_apart_from_the_row_of_offset_0(query, key):
    """No pair of the call stands on the grid; a table then has a row for offset 0 all the same."""
    sides = [grid(2, 3, prefix_tokens=2, first=first, length=length) for first, length in (query, key)]
    call = places(*sides, (query[1], key[1]))
    for positions in (call.by_axis["y"], call.on(("y", "x"), "a test")):
        assert positions.visible == (0, -1) and positions.span == (0, 1)
        assert not (positions.offsets() == 0).any()
        both = positions.offsets()[: positions.prefix_tokens[0], : positions.prefix_tokens[1]]
        assert (both == 1).all()


# --- several axes as one


def test_a_joint_offset_is_one_for_each_combination(rng):
    for _ in range(60):
        lengths = int(rng.integers(1, 7)), int(rng.integers(1, 7))
        names = ("a", "b", "c")[: int(rng.integers(2, 4))]
        given = [{name: any_side(rng, length) for name in names} for length in lengths]
        for side in given:  # prefix tokens stand on none of the axes
            for name in names:
                if isinstance(side[name], GridPositions):
                    side[name] = digits_of(rng)
        call = places(*given, lengths)
        joint = call.on(names, "a test")
        assert isinstance(joint, JointPositions) and call.on(names, "a test") is joint
        span = joint.span
        on_axes = joint.offsets_on_axes()
        assert on_axes.shape == (span.count, len(names))
        expected = torch.stack(torch.broadcast_tensors(*(call.by_axis[name].offsets() for name in names)), dim=-1)
        assert torch.equal(on_axes[joint.offsets() - span.first], expected)
        assert joint.visible == (span.first, span.first + span.count - 1)


def test_a_joint_of_grids_is_digits_with_mixed_radix():
    where = grid(3, 4, 5)
    joint = places(where, where, (60, 60)).on(("t", "y", "x"), "a test")
    assert isinstance(joint.query, GridPositions)
    assert joint.query.terms == ((7 * 9, 20, 3), (9, 5, 4), (1, 1, 5))
    assert joint.visible == (-(5 * 7 * 9 // 2), 5 * 7 * 9 // 2)


def test_the_joint_of_equal_grids_is_made_once_and_that_of_lists_for_each_call():
    def joint(*side: dict[str, GridPositions | torch.Tensor]) -> object:
        return places(*side, (12, 12)).on(("y", "x"), "a test")

    explicit = {axis: digits.expand(12, torch.device("cpu")) for axis, digits in grid(3, 4).items()}
    assert joint(grid(3, 4), grid(3, 4)) is joint(grid(3, 4), grid(3, 4))
    assert joint(grid(3, 4), grid(3, 4)) is not joint(grid(4, 3), grid(4, 3))
    assert joint(explicit, grid(3, 4)) is not joint(explicit, grid(3, 4))


def test_parts_of_a_joint_are_its_pairs(rng):
    for _ in range(60):
        sizes, prefix_tokens = tuple(int(n) for n in rng.integers(1, 4, 2)), int(rng.integers(0, 3))
        total = prefix_tokens + int(np.prod(sizes))
        where = grid(*sizes, prefix_tokens=prefix_tokens)
        call = places(where, where, (total, total))
        for positions in (call.on(("y", "x"), "a test"), call.by_axis["x"]):
            (a, b), (c, d) = (sorted(int(n) for n in rng.integers(0, total + 1, 2)) for _ in range(2))
            part = positions.part(slice(a, b), slice(c, d), batch=0)
            assert torch.equal(part.offsets(), positions.offsets()[a:b, c:d])


def test_a_joint_with_prefix_tokens_on_one_of_its_axes_alone_is_refused():
    where = {"y": grid(2, 3, prefix_tokens=1)["y"], "x": torch.arange(7)}
    with pytest.raises(ValueError, match="prefix tokens on some of the axes y, x and not on others; expected one"):
        places(where, where, (7, 7)).on(("y", "x"), "a test")


def test_no_list_is_written_for_a_grid():
    """A joint over 2^40 tokens costs nothing until it is asked for positions."""
    size = 2**20
    where = {name: GridPositions(d.terms) for name, d in grid(size, size, names=("y", "x")).items()}
    call = places(where, where, (1000, 1000))
    assert call.by_axis["x"].visible == (-999, 999)
    assert call.on(("y", "x"), "a test").visible == (-999, 999)

"""Layout: which elements of a sequence each rank holds."""

from __future__ import annotations

from typing import Literal, NamedTuple

Layout = Literal["zigzag", "contiguous"]
LAYOUTS: tuple[Layout, ...] = ("zigzag", "contiguous")


class Piece(NamedTuple):
    """Elements start .. start + length - 1 of the sequence. A rank holds them from its own element `local` on."""

    start: int
    local: int
    length: int

    def here(self) -> slice:
        """Where the rank holds them."""
        return slice(self.local, self.local + self.length)

    def there(self) -> slice:
        """Where they stand in the sequence."""
        return slice(self.start, self.start + self.length)


def piece_numbers(rank: int, world: int, layout: Layout) -> tuple[int, ...]:
    """Which of the sequence's equal pieces a rank holds.

    contiguous: the ranks follow one another. zigzag: of 2 * world pieces, piece `rank` from the beginning and piece
        `rank` from the end, so that under causality all ranks have the same number of pairs.
    """
    return (rank,) if layout == "contiguous" else (rank, 2 * world - 1 - rank)


def pieces(rank: int, world: int, length: int, layout: Layout) -> tuple[Piece, ...]:
    """The contiguous pieces that a rank holds, `length` elements together."""
    numbers = piece_numbers(rank, world, layout)
    size = length // len(numbers)
    return tuple(Piece(number * size, local * size, size) for local, number in enumerate(numbers))


def multiple(world: int, layout: Layout) -> int:
    """The number that must divide the length of a sequence."""
    return 2 * world if layout == "zigzag" else world

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


def pieces(rank: int, world: int, length: int, layout: Layout) -> tuple[Piece, ...]:
    """The contiguous pieces that a rank holds, `length` elements together.

    contiguous: the ranks follow one another. zigzag: of 2 * world equal pieces, piece `rank` from the beginning and
        piece `rank` from the end, so that under causality all ranks have the same number of pairs.
    """
    if layout == "contiguous":
        return (Piece(rank * length, 0, length),)
    half = length // 2
    return Piece(rank * half, 0, half), Piece((2 * world - 1 - rank) * half, half, half)


def multiple(world: int, layout: Layout) -> int:
    """The number that must divide the length of a sequence."""
    return 2 * world if layout == "zigzag" else world

"""SplitPositions: where the queries and the keys of a split sequence stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relattn.checks.positions import position_of, positions_beside, sequence_and_others
from relattn.distributed.group import Group
from relattn.distributed.parts import Layout, Piece, ordered
from relattn.errors import UnsupportedError
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position
from relattn.positions.positions import SEQUENCE


@dataclass(frozen=True)
class SplitPositions:
    """Where one side stands on each axis, the sequence first: of the whole; explicit positions are of the part."""

    by_axis: dict[str, Position]

    def of(self, piece: Piece) -> dict[str, Position]:
        """Where the elements of a piece stand."""
        return {
            axis: place.part(piece.here() if isinstance(place, ExplicitPositions) else piece.there())
            for axis, place in self.by_axis.items()
        }

    def whole(self, group: Group, layout: Layout) -> dict[str, Position]:
        """Where all elements stand: explicit positions are gathered from all ranks."""
        return {
            axis: ExplicitPositions(ordered(group.gathered(place.positions), -1, layout))
            if isinstance(place, ExplicitPositions)
            else place
            for axis, place in self.by_axis.items()
        }

    def described(self) -> str:
        """The facts that must be the same on all ranks."""
        explicit = ExplicitPositions
        return str({axis: "explicit" if isinstance(one, explicit) else one for axis, one in self.by_axis.items()})


def split_positions(
    name: str, argument: object, batch: Sequence[int], pieces: Sequence[Piece], whole: int, device: torch.device
) -> SplitPositions:
    """A side from an argument of `relative_attention`: a start and digits are for the whole, a tensor for the rank's
    part.

    pieces: those that the rank holds of the `whole` elements.

    Raises UnsupportedError: for a start that is a tensor. It also raises what `relative_attention` raises.
    """
    on_sequence, others = sequence_and_others(argument, start=0)
    local = sum(piece.length for piece in pieces)
    if isinstance(on_sequence, GridPositions):
        place: Position = position_of(name, on_sequence, batch, whole, device)
        assert isinstance(place, ExplicitPositions)
        place = ExplicitPositions(torch.cat([place.positions[..., piece.there()] for piece in pieces], -1))
    else:
        place = position_of(name, on_sequence, batch, local, device)
    if isinstance(place, ContiguousPositions) and isinstance(place.start, Tensor):
        raise UnsupportedError(
            f"{name}: got a start that is a tensor; expected an int where the sequence is split, for it tells which "
            "parts meet; read it with int()"
        )
    grid = {axis: one for axis, one in others.items() if isinstance(one, GridPositions)}
    explicit = {axis: one for axis, one in others.items() if axis not in grid}
    beside = positions_beside(name, grid, batch, whole, device) | positions_beside(name, explicit, batch, local, device)
    return SplitPositions({SEQUENCE: place, **{axis: beside[axis] for axis in others}})

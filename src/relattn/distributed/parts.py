"""Parts: a tensor along a sequence as the parts that the ranks of a mesh hold, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from relattn.checks.values import as_int, check_choice, check_size
from relattn.distributed.group import Group
from relattn.errors import ShapeError

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


def split(tensor: Tensor, mesh: DeviceMesh, *, dim: int, layout: Layout = "zigzag") -> Tensor:
    """This rank's part of a tensor that all ranks hold, along `dim`, the axis of the sequence.

    Zeros (False in a mask) fill the sequence up to a multiple of the number of ranks, of twice that number for
    "zigzag". `unpadded` tells where they are, and hides them as `key_mask`. Differentiable: each rank gets the gradient
    of its own part.

    mesh, layout: as in `context_parallel_attention`. tensor, dim: any tensor, and its axis to split.

    Raises TypeError, UnsupportedError: for anything but a mesh, and for a mesh of several dimensions; ValueError: for
    another layout; IndexError: for an axis that the tensor does not have.

    >>> mesh = init_device_mesh("cpu", (2,))
    >>> split(torch.arange(8), mesh, dim=0).tolist()  # on rank 0
    [0, 1, 6, 7]
    """
    group = Group(mesh)
    check_choice("layout", layout, LAYOUTS)
    dim = _nonnegative_dim(tensor, dim)
    missing = -tensor.shape[dim] % multiple(group.world, layout)
    padded = F.pad(tensor, (0, 0) * (tensor.dim() - 1 - dim) + (0, missing)) if missing else tensor
    own = pieces(group.rank, group.world, padded.shape[dim] // group.world, layout)
    return torch.cat([padded.narrow(dim, piece.start, piece.length) for piece in own], dim)


def join(tensor: Tensor, mesh: DeviceMesh, *, dim: int, layout: Layout = "zigzag", length: int | None = None) -> Tensor:
    """The whole of which `split` made each rank's part, on every rank; the gradients of all ranks add up.

    tensor: this rank's part. mesh, dim, layout: as in `split`.
    length: the length of the whole before it was filled up; all of it by default.

    Raises ShapeError: for a length beyond that of all parts, and for a part that "zigzag" cannot halve. It also raises
    what `split` raises.
    """
    group = Group(mesh)
    check_choice("layout", layout, LAYOUTS)
    dim = _nonnegative_dim(tensor, dim)
    check_part("tensor", tensor.shape[dim], layout)
    whole = ordered(group.gathered(tensor), dim, layout)
    if length is None:
        return whole
    tokens = check_size("length", length, least=0)
    if tokens > whole.shape[dim]:
        raise ShapeError(f"length: got {tokens}; expected at most {whole.shape[dim]}, what all parts have together")
    return whole.narrow(dim, 0, tokens)


def unpadded(length: int, mesh: DeviceMesh, *, layout: Layout = "zigzag") -> Bool[Tensor, "part"]:
    """True for the elements of a sequence of that length in this rank's part, False for the zeros that `split` added.

    As `key_mask`, expanded to the batch, it hides padding. A loss counts the elements for which it is True.

    length: the sequence's, before it was filled up. mesh, layout: as in `split`.

    Raises ValueError: for a length below 0. It also raises what `split` raises.
    """
    tokens = check_size("length", length, least=0)
    return split(torch.ones(tokens, dtype=torch.bool, device=Group(mesh).device), mesh, dim=0, layout=layout)


def ordered(parts: Sequence[Tensor], dim: int, layout: Layout) -> Tensor:
    """The parts of all ranks as the sequence."""
    if layout == "contiguous":
        return torch.cat(list(parts), dim)
    halves = [part.chunk(2, dim) for part in parts]
    return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)], dim)


def check_part(name: str, length: int, layout: Layout) -> None:
    """A part that consists of the layout's pieces.

    Raises ShapeError: for an odd length with "zigzag".
    """
    if layout == "zigzag" and length % 2:
        raise ShapeError(
            f"{name}: got a part of length {length}; expected an even one, two pieces of a zigzag; "
            "relattn.distributed.split makes such parts, or take layout='contiguous'"
        )


def _nonnegative_dim(tensor: Tensor, dim: int) -> int:
    number = as_int(dim)
    if number is None or not -tensor.dim() <= number < tensor.dim():
        raise IndexError(f"dim: got {dim!r} for a tensor of {tensor.dim()} axes; expected one of them")
    return number % tensor.dim()

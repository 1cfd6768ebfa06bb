"""Growing: a tensor that grows along one axis into spare room, so that a step copies none of its elements."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

SPARE_IN_A_GRAPH = 256


@dataclass(frozen=True)
class Growing:
    """room[start:stop] along `axis` is its content, with spare room before and after.

    Without gradients a new part is written into the spare room at its end. Where that is full, the content moves into
    new room, 50 % larger. So growing to n elements copies O(n) elements in all. Appending writes only into spare room.
    Two `Growing` may share it: after truncation, appending to the older one overwrites the tail of the newer.

    While gradients are recorded a part is joined by torch.cat, because a graph may have saved the content. owned is
    False for a tensor made so, and for one that came from outside: no part of it is spare. Nor is that of an inference
    tensor outside of that mode, where torch forbids to write to it. A graph cannot ask for it; there torch raises.
    """

    room: Tensor
    axis: int
    start: int
    stop: int
    owned: bool

    @classmethod
    def of(cls, tensor: Tensor, axis: int) -> Growing:
        """Holds `tensor` itself, which is never written to."""
        return cls(tensor, axis, 0, tensor.shape[axis], owned=False)

    @property
    def held(self) -> Tensor:
        """The content, a view."""
        return self.room.narrow(self.axis, self.start, self.stop - self.start)

    def __len__(self) -> int:
        return self.stop - self.start

    def append(self, part: Tensor) -> Growing:
        """`part` after the content."""
        if torch.is_grad_enabled():
            return Growing.of(torch.cat([self.held, part], dim=self.axis), self.axis)
        count = part.shape[self.axis]
        fits = self.owned and self.stop + count <= self.room.shape[self.axis]
        if fits and not torch.compiler.is_compiling() and self.room.is_inference():
            fits = torch.is_inference_mode_enabled()
        grown = self if fits else self._reallocated(0, _spare_for(len(self), count))
        grown.room.narrow(self.axis, grown.stop, count).copy_(part)
        return Growing(grown.room, grown.axis, grown.start, grown.stop + count, grown.owned)

    def prepend(self, part: Tensor) -> Growing:
        """`part` before the content."""
        if torch.is_grad_enabled():
            return Growing.of(torch.cat([part, self.held], dim=self.axis), self.axis)
        count = part.shape[self.axis]
        fits = self.owned and count <= self.start
        if fits and not torch.compiler.is_compiling() and self.room.is_inference():
            fits = torch.is_inference_mode_enabled()
        grown = self if fits else self._reallocated(_spare_for(len(self), count), 0)
        grown.room.narrow(self.axis, grown.start - count, count).copy_(part)
        return replace(grown, start=grown.start - count)

    def part(self, start: int, stop: int) -> Growing:
        """Only the elements start .. stop - 1 of the content; the rest becomes spare."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def select(self, index: Int64[Tensor, "B2"]) -> Growing:
        """Row b along axis 0 gets the content of row index[b]."""
        if torch.is_grad_enabled():
            return Growing.of(self.held.index_select(0, index), self.axis)
        chosen = self._new_room(index.shape[0], 0, _spare_for(len(self), 0))
        torch.index_select(self.held, 0, index, out=chosen.held)
        return chosen

    def detach(self) -> Growing:
        """The same numbers, through which no gradient flows."""
        return replace(self, room=self.room.detach())

    def compact(self) -> Growing:
        """The same without spare room: a copy does not need it."""
        return Growing.of(self.held.clone(), self.axis)

    def _reallocated(self, before: int, after: int) -> Growing:
        """The content, copied into new room with this much spare room."""
        moved = self._new_room(self.room.shape[0], before, after)
        moved.held.copy_(self.held)
        return moved

    def _new_room(self, batch: int, before: int, after: int) -> Growing:
        """New room of the same length, with any numbers."""
        size = [batch, *self.room.shape[1:]]
        size[self.axis] = before + len(self) + after
        return Growing(self.room.new_empty(size), self.axis, before, before + len(self), owned=True)


def _spare_for(held: int, count: int) -> int:
    """Spare room for `count` more, plus half of the whole.

    In a graph it is at least 256 more, because a move is another graph.
    """
    spare = (held + count) // 2
    return count + spare + (SPARE_IN_A_GRAPH if torch.compiler.is_compiling() else 0)

"""Launches that are noted while a pass of the kernels runs, and done again with other tensors of the same metadata.

Each argument of a launch is a tensor that the pass was given, memory that it made by `new_memory`, or a number. So all
that a later pass has of its own are addresses. Functions write them into the arguments; their texts are made from the
arguments that were noted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from relattn.backends.triton.host.ready import Ready

ALIGNED = 128
"""Each part of the memory that several share begins at a multiple of so many bytes."""


class Notes(threading.local):
    """What the pass of this thread made and launched; made is None while nothing is noted.

    made: the memory, and whether it was zero. launches: kernel, number of programs and arguments; None for one that
    cannot be done again.
    """

    made: list[tuple[Tensor, bool]] | None = None
    launches: list[tuple[Ready, int, tuple] | None]


notes = Notes()


@contextmanager
def noting() -> Iterator[None]:
    """Inside, `notes` are taken."""
    notes.made, notes.launches = [], []
    try:
        yield
    finally:
        notes.made, notes.launches = None, []  # what they hold is no longer held


def note(ready: Ready | None, programs: int, arguments: tuple) -> None:
    """A launch; ready: None where the kernel is not kept."""
    if notes.made is not None:
        notes.launches.append(None if ready is None else (ready, programs, arguments))


def new_memory(
    like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = torch.float32, *, zeros: bool = False
) -> Tensor:
    """Memory for kernels, contiguous, on the device of a tensor, and of its dtype where dtype is None."""
    made = (like.new_zeros if zeros else like.new_empty)(shape, dtype=dtype)
    if notes.made is not None:
        notes.made.append((made, zeros))
    return made


class Replay(NamedTuple):
    """A pass of the kernels for tensors of certain metadata and alignments.

    offsets: from the address of each tensor to where the kernels read it, in bytes. made: shape, dtype, and whether it
    is zero, of memory that answers hold or that is added to; others: the bytes of all other memory. launches: each
    writes its arguments, from the addresses of tensors and made memory, and where the others begin. answers: from
    tensors and made memory.
    """

    offsets: tuple[int, ...]
    made: tuple[tuple[torch.Size, torch.dtype, bool], ...]
    others: int
    launches: tuple[tuple[Ready, int, Callable[[Sequence[int], int], tuple]], ...]
    answers: Callable[[Sequence[Tensor], int], Any]

    @classmethod
    def of_notes(cls, tensors: Sequence[Tensor], read: Sequence[Tensor], answers: Any) -> Replay | None:
        """That of the pass in `notes`; None where a launch cannot be done again, or has an argument of unknown origin.

        read: the tensors as the kernels read them, in the same memory; no two are the same object.
        """
        assert notes.made is not None
        names = {id(tensor): f"a[{n}]" for n, tensor in enumerate(tensors)}
        answered = set(map(id, tree_leaves(answers)))
        made, others, launches, offsets = [], 0, [], []
        for tensor, is_zero in notes.made:
            if is_zero or id(tensor) in answered:
                names[id(tensor)] = f"a[{len(tensors) + len(made)}]"
                made.append((tensor.shape, tensor.dtype, is_zero))
            else:
                names[id(tensor)] = f"b + {others}"
                others += -(-tensor.nbytes // ALIGNED) * ALIGNED
        in_launches = dict(names)
        for n, (given, tensor) in enumerate(zip(tensors, read, strict=True)):
            offsets.append(tensor.data_ptr() - given.data_ptr())
            in_launches[id(tensor)] = f"a[{n}]"
            if given.shape == tensor.shape:
                names[id(tensor)] = f"a[{n}]"
            if given.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
                return None
        if None in notes.launches:
            return None
        try:
            for ready, programs, arguments in notes.launches:  # pyright: ignore[reportGeneralTypeIssues]
                launches.append((ready, programs, _written(arguments, in_launches, in_kinds=False)))
            return cls(tuple(offsets), tuple(made), others, tuple(launches), _written(answers, names, in_kinds=True))
        except KeyError:
            return None

    def run(self, tensors: Sequence[Tensor], addresses: Sequence[int]) -> Any:
        """The answers for tensors at these addresses."""
        first, tensors, places = tensors[0], list(tensors), []
        for address, offset in zip(addresses, self.offsets, strict=True):
            places.append(address + offset)
        with torch.cuda.device_of(first):  # kernels run on the current device
            for shape, dtype, is_zero in self.made:
                memory = (first.new_zeros if is_zero else first.new_empty)(shape, dtype=dtype)
                tensors.append(memory)
                places.append(memory.data_ptr())
            others = first.new_empty(self.others, dtype=torch.uint8)
            for ready, programs, arguments in self.launches:
                ready.launch(programs, arguments(places, others.data_ptr()))
        return self.answers(tensors, 0)


def _written(whole: Any, names: Mapping[int, str], *, in_kinds: bool) -> Callable[[Sequence[Any], int], Any]:
    """A function of a and b that makes the same with other tensors; in_kinds: named tuples of their types, else plain.

    Raises KeyError: for a tensor without a name.
    """
    constants: list[Any] = []

    def constant(part: Any) -> str:
        constants.append(part)
        return f"c[{len(constants) - 1}]"

    def text(part: Any) -> str:
        form = "({}, )"
        if isinstance(part, Tensor):
            return names[id(part)]
        if isinstance(part, dict):
            form, inside = "{{{}}}", [f"{constant(name)}: {text(each)}" for name, each in part.items()]
        elif isinstance(part, (tuple, list)):
            form, inside = "[{}]" if isinstance(part, list) else form, list(map(text, part))
        elif is_dataclass(part):
            inside = [text(getattr(part, field.name)) for field in fields(part)]
        else:
            return repr(part) if part is None or type(part) is int else constant(part)
        written = ", ".join(inside)
        if "a[" not in written and "b +" not in written:  # without a tensor
            return constant(part)
        kind = constant(type(part)) if in_kinds and type(part) not in (tuple, list, dict) else ""
        return kind + form.format(written)

    return eval(f"lambda a, b: {text(whole)}", {"c": constants})

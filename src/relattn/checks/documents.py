"""The checks of packed rows: where each document begins, and how long the longest is said to be."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from relattn.checks.tensors import refuse_device, shape
from relattn.checks.values import check_size, kind_of
from relattn.errors import ShapeError
from relattn.positions.certainty import can_be_read


def check_rows(name: str, rows: Tensor, starts: str) -> None:
    """A tensor [total, heads, width]. starts: the argument with the documents' starts."""
    if not isinstance(rows, Tensor):
        raise TypeError(f"{name}: got {kind_of(rows)}; expected a tensor [total, heads, width]")
    if rows.is_nested:
        raise TypeError(
            f"{name}: got a nested tensor; expected [total, heads, width]; pass {name}.values(), and {name}.offsets() "
            f"as {starts}"
        )
    if rows.dim() != 3:
        raise ShapeError(
            f"{name}: got shape {shape(rows)}; expected [total, heads, width], one document after the other; a batch "
            "[batch, heads, length, width] goes to relative_attention"
        )


def check_starts(
    name: str, starts: Tensor, side: str, rows: Tensor, longest_name: str, longest: int | None
) -> int | None:
    """starts [documents + 1]: 0, where each later document begins, and the number of rows. The longest length.

    longest: at least that length, if the caller says one. The numbers are read only where that waits for no device.
    Elsewhere the device checks them, and the answer is `longest`.

    Raises TypeError, ShapeError, ValueError: for other starts; RuntimeError: by the device.
    """
    if not isinstance(starts, Tensor):
        raise TypeError(f"{name}: got {kind_of(starts)}; expected a tensor [documents + 1] of int32 or int64")
    if starts.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: got dtype {starts.dtype}; expected int32 or int64; convert it with .to(torch.int32)")
    if starts.dim() != 1 or starts.shape[0] == 0:
        raise ShapeError(f"{name}: got shape {shape(starts)}; expected [documents + 1], the starts and the total")
    if starts.device != rows.device:
        refuse_device(name, starts, rows.device, "that of the rows")
    if longest is not None:
        longest = check_size(longest_name, longest, least=0)
    total, lengths = rows.shape[0], starts.long().diff()
    if not can_be_read(starts):
        if torch._C._are_functorch_transforms_active() or starts.is_meta:  # as for a key_bias
            return longest
        fits = (starts[0] == 0) & (starts[-1] == total) & (lengths >= 0).all()
        if longest is not None:
            fits = fits & (lengths <= longest).all()
        said = "" if longest is None else f", and no document longer than {longest_name}"
        torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]
            fits, f"{name}: expected 0, then numbers that never go back, the last the number of rows{said}"
        )
        return longest
    ends = starts.tolist()
    if ends[0] != 0:
        raise ValueError(f"{name}: got {ends[0]} at its beginning; expected 0, where the first document begins")
    for n, (before, after) in enumerate(pairwise(ends), 1):
        if after < before:
            raise ValueError(f"{name}: got {after} after {before} at place {n}; expected numbers that never go back")
    if ends[-1] != total:
        raise ValueError(f"{name}: got {ends[-1]} at its end; expected {total}, the number of rows of {side}")
    found = max(lengths.tolist(), default=0)
    if longest is not None and longest < found:
        raise ValueError(
            f"{longest_name}: got {longest} beside a document of {found} in {name}; expected {found} or more, or None"
        )
    return found

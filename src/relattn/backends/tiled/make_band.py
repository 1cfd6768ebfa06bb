"""Makes the band of a table, of the kind that its axis' positions need."""

from __future__ import annotations

import torch

from relattn.backends.tiled.bands import ALIGNED, Band, DiagonalBand, PairBand
from relattn.backends.tiled.grid_band import GridBand
from relattn.backends.tiled.scratch import Scratch
from relattn.equation.problem import Axis
from relattn.equation.tables import OffsetTable
from relattn.positions.boxes import units
from relattn.positions.positions import Positions


def in_boxes(axis: Axis) -> bool:
    """Whether the offsets of any patch follow from boxes: of digits on one side at least, ints on both.

    Where steps leave gaps there may be too many rows between the smallest and the largest offset to write them out. The
    limit is a few rows for each element and each row of the table.
    """
    positions = axis.positions
    if positions.known_origin is not None or units(positions.query) is None or units(positions.key) is None:
        return False
    first, last = positions.visible
    assert isinstance(first, int) and isinstance(last, int)
    rows = max((table.num_rows for table in axis.tables().values()), default=0)
    return last - first <= 2 * rows + 2 * (positions.query_length + positions.key_length)


def make_band(
    table: OffsetTable,
    positions: Positions,
    height: int,
    scratch: Scratch,
    *,
    boxes: bool,
    factor: float,
    gradient: bool,
) -> Band:
    """The band of `table` times `factor`, for patches of at most `height` rows. boxes: the answer of `in_boxes`."""
    assert isinstance(table.first, int)
    lowest, highest = table.first, table.first + table.num_rows - 1
    margin, spare, kind = 1, 0, PairBand  # one row beyond each end, for pairs outside of the table
    if positions.known_origin is not None:
        first, last = positions.visible
        assert isinstance(first, int) and isinstance(last, int)
        lowest = min(max(first, lowest), highest)
        highest = max(min(last, highest), lowest)
        margin, spare, kind = height - 1, ALIGNED - 1, DiagonalBand
    elif boxes:
        first, last = positions.visible
        assert isinstance(first, int) and isinstance(last, int)
        if first <= last:
            margin += max(lowest - first, last - highest, 0)
        spare, kind = ALIGNED - 1, GridBand
    rows = table.rows(lowest - margin, highest - lowest + 1 + 2 * margin + spare)
    rows = (rows.to(scratch.dtype) * factor).contiguous()
    return kind(
        rows=rows,
        columns=rows.transpose(1, 2).contiguous() if rows.dim() == 3 else None,
        gradient=torch.zeros_like(rows.movedim(1, -1), memory_format=torch.contiguous_format) if gradient else None,
        lowest=lowest,
        highest=highest,
        margin=margin,
        clamps=table.beyond == "clamp",
        factor=factor,
        scratch=scratch,
    )

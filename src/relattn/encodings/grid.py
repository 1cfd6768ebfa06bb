"""GridBias and GridEmbedding: one table over all axes of a grid (Liu et al. 2021, Bao et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from relattn.checks.terms import check_kind
from relattn.checks.values import as_int, came, check_choice, check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import check_axes, check_heads, check_sizes, empty_parameter
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.positions.places import JointPositions
from relattn.positions.positions import Positions, Span

YX = ("y", "x")
CLASS_ROWS = 3
"""BEiT's rows after the grid's: from the class token, to it, and from it to itself."""


class _GridTable(RelativeEncoding):
    """A table with a row for each combination of offsets on the axes of a grid, the first axis slowest.

    Its rows run from the farthest future to the most distant past, as Swin and BEiT number them: they index by query -
    key. For (dy, dx), d = key - query, on a grid of H x W, that is row (H - 1 - dy) * (2 W - 1) + (W - 1 - dx).
    """

    sizes: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """prod(2 s - 1) over the sizes s: the number of combinations of offsets on a grid."""
        return prod([2 * size - 1 for size in self.sizes])  # a list: torch.compile traces no generator here

    def _set_grid(self, sizes: Sequence[int], axes: tuple[str, ...]) -> None:
        name = type(self).__name__
        self.sizes = check_sizes(f"{name} sizes", sizes)
        self.axes = check_axes(f"{name} axes", axes, len(self.sizes))

    def _of_offsets(self, rows: Float[Tensor, "rows F"], positions: Positions) -> tuple[int, Float[Tensor, "count F"]]:
        """The first visible offset, and the rows of all, in the order of `positions.span`: the nearest future last.

        Raises ValueError: where the grid reaches further than the table on an axis.
        """
        first = positions.span.first
        assert isinstance(first, int)
        spans = positions.spans if isinstance(positions, JointPositions) else {self.axes[0]: positions.span}
        sizes = [2 * size - 1 for size in self.sizes]
        parts = []
        for axis, size in zip(self.axes, self.sizes, strict=True):
            parts.append(self._within(axis, size, spans[axis]))
        if torch.compiler.is_compiling():
            return first, self._looked_up(rows, spans, positions.device)
        ascending = rows.flip(0)
        if parts == [slice(0, size) for size in sizes]:
            return first, ascending
        return first, ascending.unflatten(0, sizes)[tuple(parts)].flatten(0, len(sizes) - 1)

    def _looked_up(
        self, rows: Float[Tensor, "rows F"], spans: Mapping[str, Span], device: torch.device
    ) -> Float[Tensor, "count F"]:
        """The same by each row's number: slices would make a graph for every way in which a grid fills the table."""
        number = torch.zeros(1, dtype=torch.int64, device=device)
        for axis, size in zip(self.axes, self.sizes, strict=True):
            number = (number.unsqueeze(-1) * (2 * size - 1) + (size - 1 - spans[axis].offsets(device))).flatten()
        return F.embedding(number, rows)

    def _within(self, axis: str, size: int, span: Span) -> slice:
        """Where the offsets of one axis lie among its 2 s - 1."""
        assert isinstance(span.first, int)
        first, last = span.first, span.first + span.count - 1
        if first < 1 - size or last > size - 1:
            name = type(self).__name__
            raise ValueError(
                f"{name} sizes: got {self.sizes} and visible offsets {first}..{last} on the axis {axis!r}; expected a "
                f"size of at least {max(-first, last) + 1} there; make it for the whole grid, or take .resized(sizes)"
            )
        return slice(first + size - 1, last + size)


class GridBias(_GridTable):
    """S_ij = scale * q_i . k_j + b[dy, dx], a learned bias per head for each pair of offsets on a grid.

    bias: the parameter [prod(2 s - 1) + extra, num_heads], which is `relative_position_bias_table` in Swin and BEiT.
        Its rows are numbered by query - key, as there: row 0 is the farthest future on every axis.

    A call raises ValueError: for a grid larger than the table's; ShapeError: for a query of another number of heads.

    Source: Liu et al. 2021 (Swin Transformer), eq. 4; Bao et al. 2022 (BEiT) and its published code.

        import torch
        from relattn import GridBias, grid, relative_attention

        query, key, value = torch.randn(3, 2, 4, 7 * 7, 16).unbind(0)
        where = grid(7, 7)
        output = relative_attention(
            query, key, value, encoding=GridBias((7, 7), num_heads=4), query_position=where, key_position=where
        )
    """

    head_axes = MappingProxyType({"bias": 1})

    def __init__(
        self, sizes: Sequence[int], num_heads: int, *, axes: tuple[str, ...] = YX, extra: Literal[0, 3] = 0
    ) -> None:
        """One number for each head and pair of offsets.

        sizes: the sizes of the grid, in the order of `axes`.
        num_heads: the number of query heads.
        axes: the names of the axes, two or any other number.
        extra: 3 adds BEiT's rows for a class token, which stands before the grid (`relattn.grid(...,
            prefix_tokens=1)`): R = prod(2 s - 1) where only the query is the class token, R + 1 where only the key is,
            R + 2 where both are. With 0 nothing is added to these pairs.

        Raises ValueError: for sizes that are not ints of at least 1, and for axes or `extra` that do not fit.
        """
        super().__init__()
        self._set_grid(sizes, axes)
        self.num_heads = check_size("num_heads", num_heads)
        if as_int(extra) not in (0, CLASS_ROWS):
            raise ValueError(f"extra: got {came(extra)}; expected 0, or 3 for the rows of a class token")
        self.extra = int(extra)
        largest = {"num_heads": self.num_heads, "sizes": max(self.sizes)}
        self.bias = empty_parameter(self.num_rows + self.extra, self.num_heads, **largest)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Biases drawn from N(0, 0.02^2), cut off at two standard deviations, as in Swin."""
        nn.init.trunc_normal_(self.bias, std=0.02, a=-0.04, b=0.04)

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """b over the joint offsets, with a class token's rows if it has them."""
        check_heads("GridBias", self.num_heads, None, query, self.bias)
        check_kind("bias", self.bias, query)
        first, rows = self._of_offsets(self.bias[: self.num_rows], positions)
        return joint_bias(rows, first, self.bias[self.num_rows :])

    def resized(self, sizes: Sequence[int], *, interpolation: Literal["bicubic", "bilinear"] = "bicubic") -> GridBias:
        """The encoding for a grid of other sizes, with interpolated biases. The biases of a class token stay.

        interpolation: "bicubic", as in timm, or "bilinear", as in Hugging Face's BEiT. Any sizes, square or not.
        """
        extra: Literal[0, 3] = 3 if self.extra else 0
        other = GridBias(sizes, self.num_heads, axes=self.axes, extra=extra)
        other.to(self.bias.device, self.bias.dtype)
        rows = _interpolated(self.bias[: self.num_rows], self.sizes, other.sizes, interpolation)
        with torch.no_grad():
            other.bias.copy_(torch.cat([rows, self.bias[self.num_rows :]]))
        return other.requires_grad_(self.bias.requires_grad)


def joint_bias(rows: Float[Tensor, "count H"], first: int, of_class_token: Float[Tensor, "extra H"]) -> ScoreTerms:
    """b over joint offsets, ascending from `first`, with the rows of a class token, 3 or none.

    These lie where `positions_on` puts the offsets of prefix tokens.
    """
    if not of_class_token.shape[0]:
        return ScoreTerms(bias=OffsetTable(rows.t(), first, "error"))
    from_it, to_it, both = of_class_token.unsqueeze(1).unbind(0)
    table = OffsetTable(torch.cat([from_it, rows, both, to_it]).t(), first - 1, "clamp")
    return ScoreTerms(bias=table, has_prefix_rows=True)


class GridEmbedding(_GridTable):
    """S_ij = scale * (q_i . k_j + q_i . E[dy, dx]), a learned row for each pair of offsets on a grid.

    relative_keys: the parameter [num_heads or 1, prod(2 s - 1), head_dim], its rows in the order of `GridBias`.

    One row per pair of offsets costs the product of the axes. One table for dy and one for dx
    (`RelativeEmbedding(...).on("y") + RelativeEmbedding(...).on("x")`, SAM and MViTv2) cost only the sum.

    A call raises ValueError: for a grid larger than the table's; ShapeError: for a query of another width or number of
    heads.

        import torch
        from relattn import GridEmbedding, grid, relative_attention

        query, key, value = torch.randn(3, 2, 4, 4 * 6, 16).unbind(0)
        where = grid(4, 6)
        output = relative_attention(
            query, key, value, encoding=GridEmbedding(16, (4, 6)), query_position=where, key_position=where
        )
    """

    head_axes = MappingProxyType({"relative_keys": 0})

    def __init__(
        self, head_dim: int, sizes: Sequence[int], *, num_heads: int | None = None, axes: tuple[str, ...] = YX
    ) -> None:
        """One row for each pair of offsets, for each head or for all.

        head_dim: the width of a head.
        sizes: the sizes of the grid, in the order of `axes`.
        num_heads: None shares one table between all heads.
        axes: the names of the axes, two or any other number.

        Raises ValueError: for sizes or axes that do not fit.
        """
        super().__init__()
        self._set_grid(sizes, axes)
        self.head_dim = check_size("head_dim", head_dim)
        self.num_heads = None if num_heads is None else check_size("num_heads", num_heads)
        heads = self.num_heads or 1
        largest = {"head_dim": self.head_dim, "num_heads": heads, "sizes": max(self.sizes)}
        self.relative_keys = empty_parameter(heads, self.num_rows, self.head_dim, **largest)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows drawn from N(0, 1 / head_dim), so that q . E[d] starts at the size of q's own features."""
        nn.init.normal_(self.relative_keys, std=self.head_dim**-0.5)

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """RK = E over the joint offsets, over the caller's query."""
        first, rows = self._of_offsets(self.relative_keys.transpose(0, 1).flatten(1), positions)
        rows = rows.unflatten(1, (-1, self.head_dim)).transpose(0, 1)
        return ScoreTerms(relative_keys=OffsetTable(rows, first, "error"))

    def resized(
        self, sizes: Sequence[int], *, interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    ) -> GridEmbedding:
        """The encoding for a grid of other sizes, with interpolated rows, as `GridBias.resized`."""
        other = GridEmbedding(self.head_dim, sizes, num_heads=self.num_heads, axes=self.axes)
        other.to(self.relative_keys.device, self.relative_keys.dtype)
        flat = self.relative_keys.transpose(0, 1).flatten(1)
        rows = _interpolated(flat, self.sizes, other.sizes, interpolation)
        with torch.no_grad():
            other.relative_keys.copy_(rows.unflatten(1, (-1, self.head_dim)).transpose(0, 1))
        return other.requires_grad_(self.relative_keys.requires_grad)


def _interpolated(
    rows: Float[Tensor, "rows F"], sizes: tuple[int, ...], others: tuple[int, ...], interpolation: str
) -> Float[Tensor, "others F"]:
    """The table of another grid. It interpolates one axis after the other, which gives the same as all axes at once."""
    check_choice("interpolation", interpolation, ("bicubic", "bilinear"))
    table = rows.detach().t().unflatten(1, [2 * size - 1 for size in sizes])
    for axis, size in enumerate(others, start=1):
        lines = table.movedim(axis, -1)
        image = lines.reshape(1, -1, 1, lines.shape[-1])
        image = F.interpolate(image, size=(1, 2 * size - 1), mode=interpolation)
        table = image.reshape(*lines.shape[:-1], 2 * size - 1).movedim(-1, axis)
    return table.flatten(1).t()

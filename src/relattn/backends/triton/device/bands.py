"""On-chip pieces that every kernel shares: rows of a tensor, rows of a table, and their products.

A program that walks over keys owns one tile of queries, [T, ...], or GROUPS of them, one below another,
[GROUPS, T, ...]. Each of several has a warp of its own, with 32 rows in place of 16. So a warp reads k, v and rows of a
table for twice as many queries.
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.knobs
import triton.language as tl

NO, ONE = tl.constexpr(False), tl.constexpr(1)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.constexpr_function
def two_to_the(log_width):
    """2 to the power of the number of its members."""
    return 2 ** len(log_width)


@triton.constexpr_function
def padded(width):
    """The power of two, 16 at least, into which a width fits."""
    return max(16, triton.next_power_of_2(width))


@tl.core.builtin
def launch_precision(_semantic=None):
    """The precision that the launch asks for. `tl.dot` does not look at it: unasked, it rounds float32 to tf32."""
    return tl.constexpr(_semantic.builder.options.default_dot_input_precision)  # pyright: ignore


@tl.core.builtin
def launch_warps(_semantic=None):
    """The number of warps of the launch."""
    return tl.constexpr(_semantic.builder.options.num_warps)  # pyright: ignore


@tl.core.builtin
def launch_arch(_semantic=None):
    """The generation of GPUs that the launch is compiled for: "sm80", ..."""
    return tl.constexpr(_semantic.builder.options.arch)  # pyright: ignore


@triton.jit
def is_tf32x3():
    """Whether the launch asks for products of float32 in three parts."""
    return False if INTERPRETED else launch_precision() == "tf32x3"


@triton.jit
def each_query(TILE: tl.constexpr, GROUPS: tl.constexpr):
    """The queries of a program, counted from its first: [T] or [GROUPS, T]."""
    number = tl.arange(0, TILE)
    if GROUPS > 1:
        number = tl.arange(0, GROUPS)[:, None] * TILE + number[None, :]
    return number


@triton.jit
def zeros_of_rows(WIDTH: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr):
    """Zeros for a row of each query of a program [T, WIDTH] or [GROUPS, T, WIDTH]."""
    return split_groups(tl.zeros((GROUPS * TILE, WIDTH), tl.float32), GROUPS)


@triton.jit
def may_own_several(x):
    """Whether a program can own several tiles of queries: not with terms that are computed for one tile at a time."""
    return x.relative_queries is None and x.dropout is None and len(x.axes) == 0


@triton.constexpr_function
def groups_of(shape):
    """The number of tiles of queries that a tensor of this shape is for."""
    return shape[0] if len(shape) == 3 else 1


@triton.jit
def flatten_groups(values):
    """Rows of several tiles [GROUPS, T, n] as [GROUPS T, n]."""
    if len(values.shape) == 3:
        values = tl.reshape(values, (values.shape[0] * values.shape[1], values.shape[2]))
    return values


@triton.jit
def split_groups(values, GROUPS: tl.constexpr):
    """The inverse of `flatten_groups`."""
    if GROUPS > 1:
        values = tl.reshape(values, (GROUPS, values.shape[0] // GROUPS, values.shape[1]))
    return values


@triton.jit
def transposed(values):
    """The last two axes exchanged."""
    return tl.permute(values, (0, 2, 1)) if len(values.shape) == 3 else tl.trans(values)


@triton.jit
def dot(a, b):
    """a @ b, summed in float32; for each of several a, if b is one. float32 factors are not rounded, or split in two as
    the launch asks; beside half precision they are always split.
    """
    if len(a.shape) == 3 and len(b.shape) == 2:
        b = tl.broadcast_to(b[None, :, :], (a.shape[0], b.shape[0], b.shape[1]))
    if INTERPRETED:  # its matrix product reads the bits of a bfloat16 as an integer
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif a.dtype != b.dtype:
        product = _of_two_dtypes(a, b)
    elif a.dtype == tl.float32 and not is_tf32x3():
        product = tl.dot(_kept_in_place(a), _kept_in_place(b), input_precision="ieee")
    else:
        product = tl.dot(a, b, input_precision=launch_precision())
    return product


@triton.jit
def _of_two_dtypes(a, b):
    """a @ b where one is in float32: split into two numbers of bfloat16, beside bfloat16, or of 11 bits beside float16,
    which bfloat16 does not hold.
    """
    if a.dtype == tl.bfloat16:
        near, far = _in_two_parts(b)
        product = tl.dot(a, near) + tl.dot(a, far)
    elif b.dtype == tl.bfloat16:
        near, far = _in_two_parts(a)
        product = tl.dot(near, b) + tl.dot(far, b)
    else:
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="tf32x3")
    return product


@triton.jit
def _in_two_parts(values):
    """float32 as a sum of two numbers of bfloat16, to 16 bits."""
    near = values.to(tl.bfloat16)
    return near, (values - near.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _kept_in_place(values):
    """float32 factors, by an instruction that the compiler moves out of no loop and shares between no two products.
    Without tensor cores a thread holds whole rows of a factor: of several factors at a time they would spill.
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [values], tl.float32, is_pure=False, pack=1)


@triton.jit
def place(rows, batch, head):
    """The start of the rows of one head of one batch element."""
    return rows.at + batch.to(tl.int64) * rows.batch + head.to(tl.int64) * rows.head


@triton.jit
def head_of(at, row, count, WIDTH: tl.constexpr):
    """The start of the rows of one head in a contiguous tensor; `row` counts the heads of all batch elements."""
    return at + row.to(tl.int64) * count * WIDTH


@triton.jit
def load_rows(at, step, first, count, WIDTH: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr = ONE):
    """Rows from `first` [TILE, padded width], of GROUPS tiles; zero where a row lies outside of 0 .. count - 1."""
    return load_padded_rows(at, step, first, count, WIDTH, padded(WIDTH), TILE, GROUPS)


@triton.jit
def load_padded_rows(
    at, step, first, count, width, PADDED: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr = ONE
):  # fmt: skip
    """`load_rows`, of a width that is no constant [TILE, PADDED]."""
    row = tl.expand_dims(first + each_query(TILE, GROUPS), -1)
    column = tl.arange(0, PADDED)[None, :]
    inside = (row >= 0) & (row < count) & (column < width)
    return tl.load(at + row.to(tl.int64) * step + column, mask=inside, other=0.0)


@triton.jit
def store_rows(at, step, first, count, values, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """The inverse of `load_rows`."""
    row = tl.expand_dims(first + each_query(TILE, groups_of(values.shape)), -1)
    column = tl.arange(0, padded(WIDTH))[None, :]
    inside = (row >= 0) & (row < count) & (column < WIDTH)
    tl.store(at + row.to(tl.int64) * step + column, values.to(at.dtype.element_ty), mask=inside)


@triton.jit
def load_numbers(at, first, count, TILE: tl.constexpr, GROUPS: tl.constexpr = ONE):
    """Numbers from `first` of a contiguous row, of GROUPS tiles; zero from count on."""
    row = first + each_query(TILE, GROUPS)
    return tl.load(at + row, mask=(row >= 0) & (row < count), other=0.0)


@triton.jit
def load_band(table, head, offset, WIDTH: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr = ONE):
    """The table's rows of the offsets offset .. offset + TILE - 1 [TILE, padded width]; for each further tile of
    queries TILE offsets less.
    """
    column_of_band = tl.arange(0, TILE)
    if GROUPS > 1:
        column_of_band = column_of_band[None, :] - tl.arange(0, GROUPS)[:, None] * TILE
    index = tl.expand_dims(offset + column_of_band, -1) - table.first
    column = tl.arange(0, padded(WIDTH))[None, :]
    inside = column < WIDTH
    if table.zero is not None:
        inside = inside & (index >= 0) & (index < table.rows)
    row = tl.minimum(tl.maximum(index, 0), table.rows - 1).to(tl.int64)
    return tl.load(table.at + head.to(tl.int64) * table.head + row * table.row + column, mask=inside, other=0.0)


@triton.jit
def load_edge(table, head, LAST: tl.constexpr, WIDTH: tl.constexpr):
    """The row that holds before the table's first row, or after its LAST: [padded width], in float32."""
    column = tl.arange(0, padded(WIDTH))
    start = table.at + head.to(tl.int64) * table.head
    if LAST:
        start += tl.cast(table.rows - 1, tl.int64) * table.row
    if table.zero is not None:
        edge = tl.zeros((padded(WIDTH),), tl.float32)
    else:
        edge = tl.load(start + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    return edge


@triton.jit
def edge_product(rows, table, head, LAST: tl.constexpr, WIDTH: tl.constexpr):
    """x_i . the row beyond the table, one number per row."""
    return tl.sum(rows.to(tl.float32) * load_edge(table, head, LAST, WIDTH)[None, :], axis=-1)


@triton.jit
def edge_sum(weights, table, head, LAST: tl.constexpr, WIDTH: tl.constexpr):
    """The sums of weights [i, j] along j, times the row beyond the table."""
    return tl.expand_dims(tl.sum(weights, axis=-1), -1) * load_edge(table, head, LAST, WIDTH)[None, :]


@triton.jit
def band_product(rows, table, head, offset, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """x_i . table[offset + c] over rows x_i [i] and columns c."""
    return dot(rows, transposed(load_band(table, head, offset, WIDTH, TILE, groups_of(rows.shape))))


@triton.jit
def band_sum(weights, table, head, offset, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """sum_c weights[i, c] * table[offset + c]."""
    return dot(weights, load_band(table, head, offset, WIDTH, TILE, groups_of(weights.shape)))

"""The four published ways to arrange Q @ RK^T into S_rel, side by side.

Row m of `relative_keys` belongs to diagonal m = j - i + (Lq - 1) of the score matrix: row 0 to the last query with the
first key. All four have one signature and give S_rel[i, j] = q_i . RK[j - i + (Lq - 1)] wherever that row exists. Pairs
whose row does not exist (the future, when the rows end at the present) hold finite values without a meaning; the
caller's mask must hide them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relattn.backends.dense.skew import strided_view
from relattn.equation.tables import gather_rows


def gather(
    relative_query: Float[Tensor, "B H Lq D"], relative_keys: Float[Tensor, "#H R D"], key_length: int
) -> Float[Tensor, "B H Lq Lk"]:
    """Write every pair's row out, [H, Lq, Lk, D], and multiply. Shaw et al. 2018, eq. 4: O(Lq Lk D) memory."""
    query_length = relative_query.shape[2]
    queries = torch.arange(query_length, device=relative_query.device).unsqueeze(1)
    diagonals = torch.arange(key_length, device=relative_query.device) - queries + (query_length - 1)
    rows = gather_rows(relative_keys, diagonals.clamp(max=relative_keys.shape[1] - 1))
    return torch.einsum("bhid,hijd->bhij", relative_query, rows.expand(relative_query.shape[1], -1, -1, -1))


def pad_reshape(
    relative_query: Float[Tensor, "B H L D"], relative_keys: Float[Tensor, "#H L D"], key_length: int
) -> Float[Tensor, "B H L L"]:
    """Pad a column on the left, reshape, drop a row. Huang et al. 2018, section 3.4.1: causal self-attention only.

    Needs exactly L rows, the offsets -(L-1)..0, for L queries and L keys.
    """
    length = relative_query.shape[2]
    if not relative_keys.shape[1] == key_length == length:
        raise ValueError(
            f"pad_reshape: got {length} queries, {key_length} keys and {relative_keys.shape[1]} rows; it is defined "
            "for equal numbers (causal self-attention); use diagonals or strided"
        )
    products = relative_query @ relative_keys.transpose(-1, -2)
    return F.pad(products, (1, 0)).flatten(-2).unflatten(-1, (length + 1, length))[..., 1:, :]


def diagonals(
    relative_query: Float[Tensor, "B H Lq D"], relative_keys: Float[Tensor, "#H R D"], key_length: int
) -> Float[Tensor, "B H Lq Lk"]:
    """Stack the diagonals of the products, transpose, truncate: the generalised algorithm, any Lq and Lk.

    Column j of S_rel runs down the products' anti-clockwise diagonal; with the queries flipped that is diagonal j.
    Needs all Lq + Lk - 1 rows; more are cut off.
    """
    query_length = relative_query.shape[2]
    if relative_keys.shape[1] < query_length + key_length - 1:
        raise ValueError(
            f"diagonals: got {relative_keys.shape[1]} rows for {query_length} queries and {key_length} keys; "
            f"expected at least {query_length + key_length - 1}"
        )
    products = (relative_query @ relative_keys.transpose(-1, -2)).flip(-2)
    columns = [products.diagonal(offset=j, dim1=-2, dim2=-1) for j in range(relative_keys.shape[1] - query_length + 1)]
    return torch.stack(columns).movedim(0, -1).flip(-2)[..., :key_length]


def strided(
    relative_query: Float[Tensor, "B H Lq D"], relative_keys: Float[Tensor, "#H R D"], key_length: int
) -> Float[Tensor, "B H Lq Lk"]:
    """Read the products through a stride one shorter than their rows: no copy, any Lq and Lk.

    It needs at least Lk + 1 rows (Lk for one query), and Lq + Lk - 1 rows if every pair must have its own.
    """
    return strided_view(relative_query @ relative_keys.transpose(-1, -2), key_length)

"""Tensor2Tensor's relative attention: Shaw's, and the Music Transformer's, masked and unmasked."""

from __future__ import annotations

from torch import Tensor

from relattn.convert.format import Format, Tensors
from relattn.convert.weights import Make, check_odd, encoding_of_table, refuse_biases, shared_table
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.relative import RelativeEmbedding
from relattn.encodings.shaw import ShawEmbedding

KERNELS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output_transform": "out_proj"}


def _format(
    attention_type: str, tables: dict[str, str], encoding: Make, *, per_head: bool, odd: bool, note: str = ""
) -> Format:
    """Kernels are [in, out]; tables have the same rows as ours, and no axis of heads where all heads share a table.

    tables: their name to ours. per_head: whether tables may have an axis of heads; a layer of one head is written with
    this axis, as Tensor2Tensor makes it by default. odd: whether rows are 2 n + 1.
    """

    def read(theirs: Tensors) -> dict[str, Tensor]:
        ours = {f"{new}.weight": theirs[f"{old}/kernel"].T for old, new in KERNELS.items()}
        for old, new in tables.items():
            if odd:
                check_odd(old, theirs[old])
            ours[f"encoding.{new}"] = theirs[old] if theirs[old].dim() == 3 else theirs[old].unsqueeze(0)
        return ours

    def write(ours: Tensors) -> dict[str, Tensor]:
        refuse_biases(ours, "Tensor2Tensor")
        theirs = {f"{old}/kernel": ours[f"{new}.weight"].T for old, new in KERNELS.items()}
        for old, new in tables.items():
            table = ours[f"encoding.{new}"]
            one_head = ours["q_proj.weight"].shape[0] == table.shape[2]
            alone = per_head and (table.shape[0] > 1 or one_head)
            theirs[old] = table if alone else shared_table(f"encoding.{new}", table, attention_type)
        return theirs

    def model(ours: Tensors) -> tuple[RelativeEncoding, int]:
        if odd:
            check_odd("encoding.relative_keys", ours["encoding.relative_keys"])
        return encoding_of_table(ours, encoding)

    return Format(
        name=f"tensor2tensor_{attention_type.removeprefix('dot_product_')}",
        about=f"multihead_attention with attention_type={attention_type!r} (Tensor2Tensor)",
        anchors=(next(iter(tables)),),
        needs={f"{old}/kernel": (2,) for old in KERNELS} | dict.fromkeys(tables, (2, 3) if per_head else (2,)),
        takes=(dict.fromkeys(tables.values(), (3,)),),
        read=read,
        write=write,
        model=model,
        note=note,
    )


RELATIVE = _format(
    "dot_product_relative",
    {
        "dot_product_attention_relative/relative_positions_keys/embeddings": "relative_keys",
        "dot_product_attention_relative/relative_positions_values/embeddings": "relative_values",
    },
    lambda width, rows, heads: ShawEmbedding(width, (rows - 1) // 2, num_heads=heads),
    per_head=False,
    odd=True,
)
RELATIVE_V2 = _format(
    "dot_product_relative_v2",
    {"dot_product_self_attention_relative_v2/key_relative_embeddings": "relative_keys"},
    lambda width, rows, heads: RelativeEmbedding(width, rows, num_heads=heads, causal=True, beyond="zero"),
    per_head=True,
    odd=False,
    note="Attend with is_causal=True.",
)
UNMASKED_RELATIVE_V2 = _format(
    "dot_product_unmasked_relative_v2",
    {"dot_product_unmasked_self_attention_relative_v2/key_relative_embeddings": "relative_keys"},
    lambda width, rows, heads: RelativeEmbedding(width, (rows + 1) // 2, num_heads=heads, beyond="zero"),
    per_head=True,
    odd=True,
)

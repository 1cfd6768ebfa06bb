"""BERT's relative_key and relative_key_query (transformers 3.1 to 4)."""

from __future__ import annotations

from torch import Tensor

from relattn.convert.format import Format, MismatchError, Tensors
from relattn.convert.weights import check_odd, encoding_of_table, renamed, shared_table
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.key_query import KeyQueryEmbedding
from relattn.encodings.relative import RelativeEmbedding

PROJECTIONS = {"self.query": "q_proj", "self.key": "k_proj", "self.value": "v_proj", "output.dense": "out_proj"}
TABLE = "self.distance_embedding.weight"
NEEDS = {f"{name}.{part}": axes for name in PROJECTIONS for part, axes in (("weight", (2,)), ("bias", (1,)))}


def _format(name: str, kind: str, parameter: str, encoding: type[RelativeEmbedding | KeyQueryEmbedding]) -> Format:
    """Their row n belongs to the distance i - j = n - (L - 1), ours to j - i: the same rows in reverse order."""
    ours_name = f"encoding.{parameter}"

    def read(theirs: Tensors) -> dict[str, Tensor]:
        table = theirs[TABLE]
        check_odd(TABLE, table)
        return {**renamed(theirs, PROJECTIONS), ours_name: table.flip(0).unsqueeze(0)}

    def write(ours: Tensors) -> dict[str, Tensor]:
        table = shared_table(ours_name, ours[ours_name], "BERT")
        missing = [f"{one}.bias" for one in PROJECTIONS.values() if f"{one}.bias" not in ours]
        if missing:
            raise MismatchError(f"has no {missing[0]}, and BERT's projections have biases; train it with bias=True")
        back = {new: old for old, new in PROJECTIONS.items()}
        return {**renamed(ours, back), TABLE: table.flip(0)}

    def model(ours: Tensors) -> tuple[RelativeEncoding, int]:
        check_odd(ours_name, ours[ours_name])
        return encoding_of_table(
            ours, lambda width, rows, heads: encoding(width, (rows + 1) // 2, num_heads=heads), ours_name
        )

    return Format(
        name=name,
        about=f"BertSelfAttention with position_embedding_type={kind!r}, and its kin (transformers 4)",
        anchors=(TABLE,),
        needs=NEEDS | {TABLE: (2,)},
        stays=("output.LayerNorm.",),
        takes=({parameter: (3,)},),
        read=read,
        write=write,
        model=model,
        note="relative_key and relative_key_query have the same parameters; config.position_embedding_type tells.",
    )


RELATIVE_KEY = _format("bert_relative_key", "relative_key", "relative_keys", RelativeEmbedding)
RELATIVE_KEY_QUERY = _format("bert_relative_key_query", "relative_key_query", "relative_embeddings", KeyQueryEmbedding)

"""relattn for Keras 3: the same encodings and attention on TensorFlow, JAX and PyTorch.

    encoding = relattn.keras.RotaryEmbedding(key_dim)
    attention = relattn.keras.RelativeMultiHeadAttention(num_heads, key_dim, encoding=encoding)

Conventions are those of the rest of relattn: the offset is d = key position - query position, and row 0 of a table
belongs to the most distant past. Nothing here imports torch unless it is Keras' backend (or `from_torch` and `to_torch`
are called).
"""

from relattn.keras.alibi import AlibiBias
from relattn.keras.attention import RelativeMultiHeadAttention
from relattn.keras.encoding import RelativeEncoding, ScoreTerms
from relattn.keras.exchange import from_torch, to_torch
from relattn.keras.positions import Positions
from relattn.keras.relative import RelativePositionalEmbedding
from relattn.keras.rotary import RotaryEmbedding
from relattn.keras.shaw import ShawRelativeEmbedding
from relattn.keras.t5 import T5RelativeBias
from relattn.keras.table import OffsetTable
from relattn.keras.transformer_xl import TransformerXLRelativeEmbedding

__all__ = [
    "AlibiBias",
    "OffsetTable",
    "Positions",
    "RelativeEncoding",
    "RelativeMultiHeadAttention",
    "RelativePositionalEmbedding",
    "RotaryEmbedding",
    "ScoreTerms",
    "ShawRelativeEmbedding",
    "T5RelativeBias",
    "TransformerXLRelativeEmbedding",
    "from_torch",
    "to_torch",
]

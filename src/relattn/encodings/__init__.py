"""The encodings, one file each; `base` holds their contract."""

from relattn.encodings.alibi import AlibiBias
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.disentangled import DisentangledEmbedding
from relattn.encodings.function import FunctionBias
from relattn.encodings.grid import GridBias, GridEmbedding
from relattn.encodings.kerple import KerpleBias
from relattn.encodings.key_query import KeyQueryEmbedding
from relattn.encodings.log_grid import LogGridBias
from relattn.encodings.relative import RelativeEmbedding
from relattn.encodings.rotary import RotaryEmbedding
from relattn.encodings.sandwich import SandwichBias
from relattn.encodings.shaw import ShawEmbedding
from relattn.encodings.t5 import T5Bias
from relattn.encodings.transformer_xl import TransformerXLEmbedding

__all__ = [
    "AlibiBias",
    "DisentangledEmbedding",
    "FunctionBias",
    "GridBias",
    "GridEmbedding",
    "KerpleBias",
    "KeyQueryEmbedding",
    "LogGridBias",
    "RelativeEmbedding",
    "RelativeEncoding",
    "RotaryEmbedding",
    "SandwichBias",
    "ShawEmbedding",
    "T5Bias",
    "TransformerXLEmbedding",
]

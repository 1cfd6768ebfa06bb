"""The configuration of the lab's transformer."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from relattn import catalogue
from relattn_lab.checks import check_size
from relattn_lab.encodings import check_encoding, lab_options


class LabConfig(PretrainedConfig):
    """Configuration of `LabModel`, a decoder-only pre-norm transformer.

    vocab_size: number of tokens. width: of the residual stream, a multiple of `heads`. depth: number of blocks. heads:
        attention heads of each block.
    encoding: a name of `relattn_lab.encodings.ENCODINGS`. encoding_options: keyword arguments of that encoding's class;
        those of `lab_options` hold where none are given. `relative+pitch+time` is for tokens of four voices.
    length: tokens in a training window; no limit of the model.
    dropout: probability, of embeddings, attention weights and each block's outputs.
    tie_word_embeddings: whether the output layer is the transposed token embedding.

    Raises ValueError: for a number that is not positive, a width that the heads do not divide, an unknown encoding, or
    an odd width under an absolute one (sines and cosines come in pairs).
    """

    model_type = "relattn-lab"
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "depth", "num_attention_heads": "heads"}  # noqa: RUF012
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012

    def __init__(
        self,
        vocab_size: int = 64,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        encoding: str = "relative-heads",
        encoding_options: dict[str, Any] | None = None,
        length: int = 256,
        dropout: float = 0.1,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ):
        numbers = {"vocab_size": vocab_size, "width": width, "depth": depth, "heads": heads, "length": length}
        for name, number in numbers.items():
            check_size(name, number)
        if width % heads:
            raise ValueError(f"width, heads: got {width} and {heads}; expected a width that the heads divide")
        if not isinstance(dropout, int | float) or not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout: got {dropout!r}; expected a probability from 0 up to, but not, 1")
        check_encoding(encoding)
        if catalogue.CATALOGUE[encoding].absolute and width % 2:
            raise ValueError(
                f"width: got {width} (heads {heads}); expected an even number for the encoding {encoding!r}"
            )
        self.vocab_size = vocab_size
        self.width = width
        self.depth = depth
        self.heads = heads
        self.encoding = encoding
        self.encoding_options = lab_options(encoding, length) | (encoding_options or {})
        self.length = length
        self.dropout = dropout
        super().__init__(**kwargs)
        self.tie_word_embeddings = tie_word_embeddings

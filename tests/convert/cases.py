"""For every format a checkpoint with two layers and more beside them, and what each layer computes by its source."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.convert import published
from tests.peers.compare import longest_sum

B, LENGTH, DIM, HEADS, WIDTH, FURTHEST = 2, 7, 12, 3, 4, 4
TERMS = longest_sum(B, LENGTH, LENGTH, DIM, WIDTH, relative_terms=2)
"""FURTHEST < LENGTH: what holds beyond the tables is compared, too."""


@dataclass(frozen=True)
class Case:
    """A checkpoint of a format.

    source: the format. parameters: of one layer, by local names. layers: what their names begin with. others: names of
    what is not attention. published: x and a layer's parameters to its output. keywords: of our forward.
    outside: local names to the names of a layer's parameters that stand elsewhere.
    """

    source: str
    parameters: dict[str, tuple[int, ...]]
    layers: tuple[str, str]
    others: tuple[str, ...]
    published: Callable[..., Tensor]
    keywords: dict[str, Any] = field(default_factory=dict)
    outside: Callable[[str], dict[str, str]] = lambda layer: {}

    def names(self, layer: str) -> dict[str, str]:
        """The names of a layer's parameters."""
        return {local: layer + local for local in self.parameters} | self.outside(layer)

    def checkpoint(self) -> dict[str, Tensor]:
        """Random numbers, such that scores are of size 1; one for all layers where their names are one."""
        made: dict[str, Tensor] = {}
        for layer in self.layers:
            for local, name in self.names(layer).items():
                shape = self.parameters[local]
                small = len(shape) == 2 and DIM in shape
                made[name] = torch.randn(shape) * (DIM**-0.5 if small else 1.0)
        return made | {name: torch.randn(3, 5) for name in self.others}


def bert(kind: str) -> Case:
    linear = {
        f"{one}.{part}": shape
        for one in ("self.query", "self.key", "self.value", "output.dense")
        for part, shape in (("weight", (DIM, DIM)), ("bias", (DIM,)))
    }
    return Case(
        f"bert_{kind}",
        linear | {"self.distance_embedding.weight": (2 * LENGTH + 3, WIDTH)},
        ("bert.encoder.layer.0.attention.", "bert.encoder.layer.10.attention."),
        ("bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.attention.output.LayerNorm.weight"),
        partial(published.bert, kind=kind),
    )


def tensor2tensor(attention_type: str, tables: dict[str, tuple[int, ...]]) -> Case:
    kernels = {f"{one}/kernel": (DIM, DIM) for one in ("q", "k", "v", "output_transform")}
    return Case(
        f"tensor2tensor_{attention_type.removeprefix('dot_product_')}",
        kernels | tables,
        tuple(f"transformer/body/decoder/layer_{n}/self_attention/multihead_attention/" for n in (0, 1)),
        ("transformer/symbol_modality_310_512/shared/weights_0",),
        partial(published.tensor2tensor, attention_type=attention_type, heads=HEADS),
        keywords={"is_causal": True} if attention_type == "dot_product_relative_v2" else {},
    )


XL = {
    "qkv_net.weight": (3 * DIM, DIM), "o_net.weight": (DIM, DIM), "r_net.weight": (DIM, DIM),
    "r_w_bias": (HEADS, WIDTH), "r_r_bias": (HEADS, WIDTH),
}  # fmt: skip
SCOPE = "dot_product_self_attention_relative_v2/key_relative_embeddings"
UNMASKED = "dot_product_unmasked_self_attention_relative_v2/key_relative_embeddings"
SHAWS = "dot_product_attention_relative/relative_positions_{}/embeddings"

CASES = {
    "bert_relative_key": bert("relative_key"),
    "bert_relative_key_query": bert("relative_key_query"),
    "transfo_xl": Case(
        "transfo_xl",
        XL,
        ("transformer.layers.0.dec_attn.", "transformer.layers.1.dec_attn."),
        ("transformer.word_emb.emb_layers.0.weight", "transformer.layers.0.dec_attn.layer_norm.weight"),
        published.transformer_xl,
        {"is_causal": True},
    ),
    "t2t_shaw": tensor2tensor(
        "dot_product_relative", {SHAWS.format(one): (2 * FURTHEST + 1, WIDTH) for one in ("keys", "values")}
    ),
    "t2t_masked": tensor2tensor("dot_product_relative_v2", {SCOPE: (FURTHEST, WIDTH)}),
    "t2t_masked_per_head": tensor2tensor("dot_product_relative_v2", {SCOPE: (HEADS, FURTHEST, WIDTH)}),
    "t2t_masked_long": tensor2tensor("dot_product_relative_v2", {SCOPE: (LENGTH + 3, WIDTH)}),
    "t2t_unmasked": tensor2tensor("dot_product_unmasked_relative_v2", {UNMASKED: (2 * FURTHEST - 1, WIDTH)}),
    "t2t_unmasked_per_head_long": tensor2tensor(
        "dot_product_unmasked_relative_v2", {UNMASKED: (HEADS, 2 * LENGTH + 3, WIDTH)}
    ),
    "returnn_key_shift": Case(
        "returnn_key_shift",
        {"QKV": (DIM, 3 * DIM), "encoding_matrix": (2 * FURTHEST + 1, WIDTH)},
        ("enc_1_self_att_att/", "enc_10_self_att_att/"),
        ("enc_1_self_att_lin/W",),
        published.returnn_key_shift,
        {"is_causal": True},
        lambda layer: {"encoding_matrix": layer.replace("self_att_att", "rel_pos") + "encoding_matrix"},
    ),
}
TIED = Case(
    "transfo_xl", XL, ("layers.0.dec_attn.", "layers.1.dec_attn."), (), published.transformer_xl, {"is_causal": True},
    lambda layer: {local: local for local in ("r_w_bias", "r_r_bias")},
)  # fmt: skip

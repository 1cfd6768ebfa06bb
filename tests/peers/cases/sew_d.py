"""The encoders of SEW-D."""

from typing import Any

import transformers as hf
from torch import nn

from tests.peers.cases.case import HEADS, WIDTH, Case, at_tokens, frames

BOTH = ["c2p", "p2c"]
SEW_D = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24,
         "conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (8,), "num_conv_pos_embeddings": 4,
         "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0, "activation_dropout": 0.0,
         "attention_dropout": 0.0}  # fmt: skip


def sew_d(squeeze: int = 1, **changes: Any) -> Case:
    """Its dropout is a module of its own, which tests/hf/test_sew_d.py knows."""

    def make(_: int) -> nn.Module:
        encoder = hf.SEWDModel(hf.SEWDConfig(**SEW_D, squeeze_factor=squeeze, **changes)).encoder
        normed = encoder.pos_conv_embed.conv  # by a parametrization, which cannot be pickled
        shape = normed.kernel_size, normed.stride, normed.padding
        encoder.pos_conv_embed.conv = nn.Conv1d(WIDTH, WIDTH, *shape, groups=normed.groups)
        return encoder

    biases = {"key_proj.bias": "key_proj.weight", "pos_key_proj.bias": "pos_key_proj.weight"}
    return Case(make, frames, 3, at_tokens, key_biases=biases, attentions=squeeze == 1, dropout=False)


CASES = {
    "sew_d": sew_d(pos_att_type=BOTH, position_buckets=6, max_position_embeddings=8),
    "sew_d_squeezed": sew_d(2, pos_att_type=BOTH, position_buckets=6, max_position_embeddings=8),
    "sew_d_c2p": sew_d(pos_att_type=["c2p"], position_buckets=-1, max_position_embeddings=5, share_att_key=False),
}

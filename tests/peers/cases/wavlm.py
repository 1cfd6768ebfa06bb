"""The encoders of WavLM."""

from typing import Any

import transformers as hf
from torch import nn

from tests.peers.cases.case import HEADS, WIDTH, Case, at_tokens, frames

WAVLM = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24,
         "conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (8,), "num_feat_extract_layers": 1,
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0}  # fmt: skip


def wavlm(**changes: Any) -> Case:
    def make(_: int) -> nn.Module:
        encoder = hf.WavLMModel(hf.WavLMConfig(**WAVLM, **changes)).encoder
        normed = encoder.pos_conv_embed.conv  # by a parametrization, which cannot be pickled
        shape = normed.kernel_size, normed.stride, normed.padding
        encoder.pos_conv_embed.conv = nn.Conv1d(WIDTH, WIDTH, *shape, groups=normed.groups)
        return encoder

    return Case(make, frames, 2, at_tokens, key_biases={"k_proj.bias": "k_proj.weight"})


CASES = {
    "wavlm": wavlm(num_buckets=16, max_bucket_distance=8),
    "wavlm_stable_layer_norm": wavlm(num_buckets=24, max_bucket_distance=20, do_stable_layer_norm=True),
}

"""Inkling and Inkling 2."""

from typing import Any

from torch import nn
from transformers.models.inkling import InklingTextConfig
from transformers.models.inkling.modeling_inkling import InklingForCausalLM
from transformers.models.inkling2 import Inkling2TextConfig
from transformers.models.inkling2.modeling_inkling2 import Inkling2TextModel

from tests.peers.cases.case import VOCABULARY, WIDTH, Case, at_tokens, tokens

SIZES = {"vocab_size": VOCABULARY, "unpadded_vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2,
         "layer_types": ["hybrid_sliding", "hybrid"], "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 4, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1, "swa_head_dim": 6,
         "sliding_window_size": 4, "d_rel": 3, "rel_extent": 5, "conv_kernel_size": 3, "log_scaling_n_floor": 4,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
INKLING = {"intermediate_size": 24, "mlp_layer_types": ["dense", "dense"], "logits_mup_width_multiplier": 1.0}
INKLING2 = {"moe_intermediate_size": 8, "n_routed_experts": 2, "num_experts_per_tok": 2,
            "n_layers_per_attn_res_block": 2, "qk_l2_clip_threshold": 3.0, "rel_l2_clip_threshold": 2.0}  # fmt: skip


def inkling(**changes: Any) -> Case:
    """Generation in tests/hf/test_inkling.py: with a static cache the originals fail, or err."""
    return Case(
        lambda _: InklingForCausalLM(InklingTextConfig(**{**SIZES, **INKLING, **changes})), tokens, 2, at_tokens
    )


def inkling2(**changes: Any) -> Case:
    """With one projection in place of its experts, whose router wants float32 weights whatever the others are."""

    def make(_: int) -> nn.Module:
        model = Inkling2TextModel(Inkling2TextConfig(**{**SIZES, **INKLING2, **changes}))
        for layer in model.layers:
            layer.mlp = nn.Linear(WIDTH, WIDTH)
        return model

    return Case(make, tokens, 6, at_tokens)


CASES = {
    "inkling": inkling(),
    "inkling_without_windows": inkling(layer_types=["hybrid", "hybrid"], log_scaling_n_floor=None, rel_extent=20),
    "inkling2": inkling2(),
    "inkling2_without_windows": inkling2(layer_types=["hybrid", "hybrid"], rel_extent=20),
}

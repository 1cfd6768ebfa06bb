"""Inkling, Inkling 2 and Inkling 2 Loop."""

from typing import Any

from torch import nn

from relattn.hf.installed import VERSION, release
from tests.peers.cases.case import VOCABULARY, WIDTH, Case, at_tokens, theirs, tokens

SIZES = {"vocab_size": VOCABULARY, "unpadded_vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2,
         "layer_types": ["hybrid_sliding", "hybrid"], "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 4, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1, "swa_head_dim": 6,
         "sliding_window_size": 4, "d_rel": 3, "rel_extent": 5, "conv_kernel_size": 3, "log_scaling_n_floor": 4,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
INKLING = {"intermediate_size": 24, "mlp_layer_types": ["dense", "dense"], "logits_mup_width_multiplier": 1.0}
INKLING2 = {"moe_intermediate_size": 8, "n_routed_experts": 2, "num_experts_per_tok": 2,
            "n_layers_per_attn_res_block": 2, "qk_l2_clip_threshold": 3.0, "rel_l2_clip_threshold": 2.0}  # fmt: skip
LOOP = {"num_hidden_layers": 4, "layer_types": ["hybrid_sliding", "hybrid"] * 2, "loop_layer_index_start": 2,
        "loop_layer_index_end": 4, "loop_num_passes": 2, "loop_gate_rank": 3,
        "n_layers_per_attn_res_block": 1}  # fmt: skip
"""With one layer a block the messages of a pass are drawn from more than one state."""


def of_text(family: str, model: str, config: str, **settings: Any) -> nn.Module:
    model_of, config_of = theirs(family, model, config)
    return model_of(config_of(**{**SIZES, **settings}))


def inkling(**changes: Any) -> Case:
    """Generation in tests/hf/test_inkling.py: with a static cache the originals fail, or err."""
    settings = {**INKLING, **changes}
    return Case(
        lambda _: of_text("inkling", "InklingForCausalLM", "InklingTextConfig", **settings), tokens, 2, at_tokens
    )


def inkling2(**changes: Any) -> Case:
    """From transformers 5.24 on, the model and the biases of its layers are replaced, too."""
    return without_experts("inkling2", "Inkling2", replaced=9 if release(VERSION) >= (5, 24) else 6, **changes)


def inkling2_loop(**changes: Any) -> Case:
    return without_experts("inkling2_loop", "Inkling2Loop", replaced=18, **LOOP, **changes)


def without_experts(family: str, kind: str, replaced: int, **changes: Any) -> Case:
    """With one projection in place of its experts, whose router wants float32 weights whatever the others are."""

    def make(_: int) -> nn.Module:
        model = of_text(family, f"{kind}TextModel", f"{kind}TextConfig", **{**INKLING2, **changes})
        for layer in model.layers:
            layer.mlp = nn.Linear(WIDTH, WIDTH)
        return model

    return Case(make, tokens, replaced, at_tokens, residuals=True)


CASES = {
    "inkling": inkling(),
    "inkling_without_windows": inkling(layer_types=["hybrid", "hybrid"], log_scaling_n_floor=None, rel_extent=20),
    "inkling2": inkling2(),
    "inkling2_without_windows": inkling2(layer_types=["hybrid", "hybrid"], rel_extent=20),
    "inkling2_loop": inkling2_loop(),
}

"""Switch Transformers, Pop2Piano and Pix2Struct."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from tests.peers.cases.case import BATCH, HEADS, VOCABULARY, WIDTH, Case, padding, pairs_of_texts, whole
from tests.peers.cases.t5 import T5

PATCH = 6


def switch(**changes: Any) -> Case:
    """Without experts: which of them a token goes to would turn with a rounding."""

    def make(_: int) -> nn.Module:
        config = hf.SwitchTransformersConfig(**T5, num_decoder_layers=2, **changes)
        config.encoder_sparse_step = config.decoder_sparse_step = 0
        return hf.SwitchTransformersForConditionalGeneration(config)

    return Case(make, pairs_of_texts, 6, whole, generates=True)


def pop2piano(**changes: Any) -> Case:
    config = hf.Pop2PianoConfig(**T5, **changes)
    return Case(
        lambda _: hf.Pop2PianoForConditionalGeneration(config), pairs_of_texts, 6, whole, unused=("mel_conditioner",)
    )


def pix2struct(**changes: Any) -> Case:
    """Its images' attention has no positions, and keeps its class."""
    text = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 24, "num_layers": 2,
            "num_heads": HEADS, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6,
            "use_cache": True}  # fmt: skip
    images = {"hidden_size": WIDTH, "patch_embed_hidden_size": PATCH, "d_ff": 24, "d_kv": WIDTH // HEADS, "seq_len": 16,
              "num_hidden_layers": 1, "num_attention_heads": HEADS}  # fmt: skip

    def make(_: int) -> nn.Module:
        return hf.Pix2StructForConditionalGeneration(
            hf.Pix2StructConfig(text_config={**text, **changes}, vision_config=images, is_encoder_decoder=True)
        )

    return Case(make, patches_and_text, 4, whole, generates=True)


def patches_and_text(length: int) -> dict[str, Tensor]:
    """Patches with their rows and columns before them."""
    target = pairs_of_texts(length)["decoder_input_ids"]
    places = torch.randint(0, 16, (BATCH, length, 2)).float()
    patches = torch.cat([places, torch.randn(BATCH, length, PATCH)], dim=-1)
    return {"flattened_patches": patches, "attention_mask": padding(length), "decoder_input_ids": target}


CASES = {"switch_transformers": switch(), "pop2piano": pop2piano(), "pix2struct": pix2struct()}

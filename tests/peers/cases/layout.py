"""LayoutLMv2's encoder, whose model needs detectron2, and LayoutLMv3, from text alone and with an image."""

from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor
from transformers.models.layoutlmv2.modeling_layoutlmv2 import LayoutLMv2Encoder

from tests.peers.cases.case import BATCH, TEXT, WIDTH, Case, at_tokens, padding, tokens

LAYOUT = {**TEXT, "intermediate_size": 24, "rel_pos_bins": 8, "max_rel_pos": 6, "rel_2d_pos_bins": 16,
          "max_rel_2d_pos": 40, "coordinate_size": 2, "shape_size": 4, "max_2d_position_embeddings": 64}  # fmt: skip
KEYS = {"key.bias": "key.weight"}
UNTRAINED = ("rel_pos",)
"""The originals look their biases up without gradients."""


def boxes(length: int) -> Tensor:
    """Left, upper, right and lower edge of the words."""
    corner, size = torch.randint(0, 40, (BATCH, length, 2)), torch.randint(1, 20, (BATCH, length, 2))
    return torch.cat([corner, corner + size], dim=-1)


def layout_lm_v2(**changes: Any) -> Case:
    def make(_: int) -> LayoutLMv2Encoder:
        return LayoutLMv2Encoder(hf.LayoutLMv2Config(**LAYOUT, **changes))

    def inputs(length: int) -> dict[str, Tensor]:
        hidden = (1.0 - padding(length).float()) * torch.finfo(torch.float32).min
        return {
            "hidden_states": torch.randn(BATCH, length, WIDTH),
            "attention_mask": hidden[:, None, None],
            "bbox": boxes(length),
            "position_ids": torch.arange(length).expand(BATCH, -1),
        }

    def output(found: Any, inputs: dict[str, Tensor]) -> Tensor:
        return found[0][inputs["attention_mask"][:, 0, 0] == 0.0]

    return Case(make, inputs, 3, output, unused=UNTRAINED, key_biases=KEYS, attentions=False)


def layout_lm_v3(*, image: bool, **changes: Any) -> Case:
    """image: 2 x 2 patches and a class token behind the text."""

    def make(length: int) -> hf.LayoutLMv3Model:
        settings = {**LAYOUT, "max_position_embeddings": length + 2, "input_size": 4, "patch_size": 2, **changes}
        return hf.LayoutLMv3Model(hf.LayoutLMv3Config(**settings, visual_embed=image))

    def inputs(length: int) -> dict[str, Tensor]:
        found = {**tokens(length), "bbox": boxes(length)}
        return found | ({"pixel_values": torch.randn(BATCH, 3, 4, 4)} if image else {})

    def output(found: Any, inputs: dict[str, Tensor]) -> Tensor:
        mask = inputs["attention_mask"].bool()
        return found[0][F.pad(mask, (0, found[0].shape[1] - mask.shape[1]), value=True)]

    return Case(
        make, inputs, 3, output if image else at_tokens, features=("pixel_values",) if image else (),
        unused=UNTRAINED, key_biases=KEYS, attentions=not image,
    )  # fmt: skip


CASES = {
    "layoutlmv2": layout_lm_v2(),
    "layoutlmv2_three_projections": layout_lm_v2(fast_qkv=False),
    "layoutlmv2_of_the_page": layout_lm_v2(has_relative_attention_bias=False),
    "layoutlmv3": layout_lm_v3(image=True),
    "layoutlmv3_text": layout_lm_v3(image=False),
    "layoutlmv3_text_of_the_sequence": layout_lm_v3(image=False, has_spatial_attention_bias=False),
}

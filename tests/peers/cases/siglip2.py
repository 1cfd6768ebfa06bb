"""SigLIP 2: each image has its own number of patches; one query reads them at the end."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from tests.peers.cases.case import BATCH, HEADS, WIDTH, Case

PATCH = 2


def patches(length: int) -> dict[str, Tensor]:
    """Rows of patches; the second image has the first three only."""
    shapes = torch.tensor([[1, length], [1, 3]])
    return {
        "pixel_values": torch.randn(BATCH, length, 3 * PATCH**2),
        "pixel_attention_mask": (torch.arange(length) < shapes[:, 1:]).long(),
        "spatial_shapes": shapes,
    }


def pooled(output: Any, inputs: dict[str, Tensor]) -> Tensor:
    return output.pooler_output


def make(_: int) -> nn.Module:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24}
    return hf.Siglip2VisionModel(hf.Siglip2VisionConfig(**sizes, patch_size=PATCH, num_patches=16))


CASES = {
    "siglip2": Case(
        make,
        patches,
        1,
        pooled,
        features=("pixel_values",),
        key_biases={"k_proj.bias": "k_proj.weight"},
        attentions=False,
        dropout=False,
    )
}

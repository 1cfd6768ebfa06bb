"""BEiT and Data2Vec-Vision, on images of side x side patches."""

import math
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from tests.peers.cases.case import BATCH, HEADS, WIDTH, Case, padding, whole

PATCH = 2
SETTINGS = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24,
            "patch_size": PATCH, "drop_path_rate": 0.0}  # fmt: skip


def side(length: int) -> int:
    """About the square root, for about so many patches."""
    return max(math.isqrt(length), 5)


def case(
    kind: str, *, image: tuple[int, int] = (0, 0), masked: bool = False, replaced: int = 4, attentions: bool = True,
    **changes: Any,
) -> Case:  # fmt: skip
    """image: how many rows and columns of patches the input has more than the model's own grid."""
    config, model = (getattr(hf, f"{kind}{part}") for part in ("Config", "Model"))

    def make(length: int) -> hf.PreTrainedModel:
        settings = {"image_size": PATCH * side(length), **SETTINGS, **changes}
        return model(config(**settings), add_pooling_layer=False)

    def inputs(length: int) -> dict[str, Tensor]:
        height, width = (side(length) + more for more in image)
        found = {"pixel_values": torch.randn(BATCH, 3, PATCH * height, PATCH * width)}
        return found | ({"attention_mask": padding(height * width + 1)} if masked else {})

    return Case(make, inputs, replaced, whole, features=("pixel_values",), attentions=attentions)


OWN = {"use_relative_position_bias": True}
SHARED = {"use_shared_relative_position_bias": True}
EAGER = {"attn_implementation": "eager"}

CASES = {
    "beit": case("Beit", **OWN),
    "beit_shared": case("Beit", replaced=3, **SHARED),
    "beit_both_padded": case("Beit", masked=True, replaced=5, **OWN, **SHARED, **EAGER),
    "beit_of_another_grid": case("Beit", image=(1, -1), **OWN),
    "beit_without_a_bias": case("Beit", replaced=2, use_absolute_position_embeddings=True),
    "data2vec_vision": case("Data2VecVision", **OWN, **EAGER),
    "data2vec_vision_shared": case("Data2VecVision", replaced=3, **SHARED, **EAGER),
    "data2vec_vision_both": case("Data2VecVision", image=(0, 1), replaced=5, attentions=False, **OWN, **SHARED),
}

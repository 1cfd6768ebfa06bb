"""SAM's image encoder and those that are like it: rows of a table for y and one for x, in windows and on all patches.

A grid of 5 x 5 patches is cut into windows of 3 x 3, so it is filled up; the second layer sees all of it.
"""

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from tests.peers.cases.beit import PATCH, side
from tests.peers.cases.case import BATCH, HEADS, WIDTH, Case, theirs, whole

VIT = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "patch_size": PATCH}
SAM = {**VIT, "output_channels": 8, "mlp_dim": 24, "window_size": 3, "global_attn_indexes": [1]}
EAGER = {"attn_implementation": "eager"}


def pixels(length: int, more: tuple[int, int] = (0, 0)) -> dict[str, Tensor]:
    """more: how many rows and columns of patches beyond the model's own grid."""
    height, width = (PATCH * (side(length) + one) for one in more)
    return {"pixel_values": torch.randn(BATCH, 3, height, width)}


def sam(
    family: str, config: str, model: str, *, drops: bool = True, more: tuple[int, int] = (0, 0),
    output: Any = whole, **changes: Any,
) -> Case:  # fmt: skip
    """drops: whether its attention has dropout."""
    settings = {**SAM, **changes}

    def make(length: int) -> hf.PreTrainedModel:
        model_of, config_of = theirs(family, model, config)
        return model_of(config_of(image_size=PATCH * side(length), **settings))

    return Case(
        make, lambda length: pixels(length, more), 2, output, features=("pixel_values",), attentions=False,
        dropout=drops,
    )  # fmt: skip


def vitdet(*, more: tuple[int, int] = (0, 0), **changes: Any) -> Case:
    def make(length: int) -> hf.PreTrainedModel:
        size = PATCH * side(length)
        settings = {**VIT, "mlp_ratio": 2, "image_size": size, "pretrain_image_size": size, **changes}
        return hf.VitDetModel(hf.VitDetConfig(**settings))

    return Case(
        make, lambda length: pixels(length, more), 2, whole, features=("pixel_values",), attentions=False, dropout=False
    )


def seggpt() -> Case:
    """The image below its prompt, a grid of an even number of rows."""

    def sizes(length: int) -> tuple[int, int]:
        width = side(length)
        return 2 * PATCH * (length // (2 * width)), PATCH * width

    def make(length: int) -> hf.PreTrainedModel:
        settings = {**VIT, "mlp_dim": 24, "pretrain_image_size": 4, "drop_path_rate": 0.0, "merge_index": 0,
                    "intermediate_hidden_state_indices": [0, 1], "image_size": sizes(length)}  # fmt: skip
        return hf.SegGptModel(hf.SegGptConfig(**settings))

    def inputs(length: int) -> dict[str, Tensor]:
        height, width = sizes(length)
        names = "pixel_values", "prompt_pixel_values", "prompt_masks"
        return {name: torch.randn(BATCH, 3, height // 2, width) for name in names}

    def output(found: Any, _: dict[str, Tensor]) -> Tensor:
        return torch.cat(found.intermediate_hidden_states)

    return Case(
        make, inputs, 2, output, features=("pixel_values", "prompt_pixel_values", "prompt_masks"),
        unused=("type_token_semantic",), attentions=False, dropout=False,
    )  # fmt: skip


ONE = ("sam", "SamVisionConfig", "SamVisionModel")
HQ = ("sam_hq", "SamHQVisionConfig", "SamHQVisionModel")
GOT = ("got_ocr2", "GotOcr2VisionConfig", "GotOcr2VisionEncoder")
DEEPSEEK = ("deepseek_ocr2", "DeepseekOcr2SamVisionConfig", "DeepseekOcr2SamVisionEncoder")
UNLIMITED = ("unlimited_ocr", "UnlimitedOcrSamVisionConfig", "UnlimitedOcrSamVisionEncoder")
SLANEXT = ("slanext", "SLANeXtVisionConfig", "SLANeXtVisionEncoder")
FORMULA = ("pp_formulanet", "PPFormulaNetVisionConfig", "PPFormulaNetVisionModel")
DOWN = {"downsample_channels": [8, 8]}
PROJECTED = {"post_conv_in_channels": 8, "post_conv_mid_channels": 8, "post_conv_out_channels": 8,
             "decoder_hidden_size": 8}  # fmt: skip

CASES = {
    "sam": sam(*ONE, drops=False),
    "sam_eager": sam(*ONE, **EAGER),
    "sam_without_a_table": sam(*ONE, use_rel_pos=False, **EAGER),
    "sam_hq": sam(*HQ, drops=False),
    "sam_hq_eager": sam(*HQ, **EAGER),
    "got_ocr2": sam(*GOT),
    "deepseek_ocr2": sam(*DEEPSEEK, drops=False, **DOWN),
    "deepseek_ocr2_of_another_grid": sam(*DEEPSEEK, more=(3, -1), **DOWN, **EAGER),
    "unlimited_ocr": sam(*UNLIMITED, drops=False, **DOWN),
    "slanext": sam(*SLANEXT),
    "pp_formulanet": sam(*FORMULA, output=lambda found, _: found.pooler_output, **PROJECTED),
    "vitdet": vitdet(use_relative_position_embeddings=True),
    "vitdet_of_another_grid": vitdet(
        use_relative_position_embeddings=True, more=(-1, 2), window_size=2, window_block_indices=[0]
    ),
    "seggpt": seggpt(),
}  # fmt: skip

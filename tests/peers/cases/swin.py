"""Swin, its copies in Donut, MaskFormer and CLAP, and the cosine attention of Swin-v2 and Swin2SR.

A grid of side x side patches is cut into four windows, of which an odd side needs to be filled up. Of the two layers
the second is shifted.
"""

from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.models.donut.modeling_donut_swin import DonutSwinModel
from transformers.models.maskformer.configuration_maskformer_swin import MaskFormerSwinConfig
from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinModel

from tests.peers.cases.beit import side
from tests.peers.cases.case import BATCH, HEADS, WIDTH, Case, whole

PATCH = 2
SETTINGS = {"depths": [2], "mlp_ratio": 1.5, "drop_path_rate": 0.0, "hidden_dropout_prob": 0.0}
IMAGE = {"embed_dim": WIDTH, "num_heads": [HEADS], "patch_size": PATCH}
SPECTROGRAM = {"patch_embeds_hidden_size": WIDTH, "num_attention_heads": [HEADS], "patch_size": PATCH,
               "patch_stride": [PATCH, PATCH]}  # fmt: skip
KEYS = {"key.bias": "key.weight"}


def window(length: int) -> int:
    return (side(length) + 1) // 2


def images(
    model: type,
    config: type,
    biases: dict[str, str],
    *,
    patch: int = PATCH,
    even: bool = False,
    replaced: int = 4,
    **changes: Any,
) -> Case:
    """even: the side is that of two windows."""

    def pixels(length: int) -> int:
        return patch * (2 * window(length) if even else side(length))

    def make(length: int) -> hf.PreTrainedModel:
        settings = {**SETTINGS, **IMAGE, "patch_size": patch, **changes}
        return model(config(image_size=pixels(length), window_size=window(length), **settings))

    def inputs(length: int) -> dict[str, Tensor]:
        return {"pixel_values": torch.randn(BATCH, 3, pixels(length), pixels(length))}

    return Case(
        make, inputs, replaced, whole, features=("pixel_values",), key_biases=biases, attentions=False
    )  # weights come window by window


def clap() -> Case:
    """The audio encoder, of a spectrogram of the size that it works with."""

    def make(length: int) -> hf.ClapAudioModel:
        size = PATCH * side(length)
        settings = {**SETTINGS, **SPECTROGRAM}
        config = hf.ClapAudioConfig(spec_size=size, num_mel_bins=size, window_size=window(length), **settings)
        return hf.ClapAudioModel(config)

    def inputs(length: int) -> dict[str, Tensor]:
        return {"input_features": torch.randn(BATCH, 1, PATCH * side(length), PATCH * side(length))}

    return Case(make, inputs, 4, whole, features=("input_features",), key_biases=KEYS, attentions=False)


CASES = {
    "swin": images(hf.SwinModel, hf.SwinConfig, {"k_proj.bias": "k_proj.weight"}, replaced=6),
    "donut_swin": images(DonutSwinModel, hf.DonutSwinConfig, KEYS),
    "maskformer_swin": images(MaskFormerSwinModel, MaskFormerSwinConfig, KEYS),
    "clap": clap(),
    "swin_v2": images(hf.Swinv2Model, hf.Swinv2Config, {}),
    "swin_v2_pretrained": images(hf.Swinv2Model, hf.Swinv2Config, {}, pretrained_window_sizes=[4]),
    "swin2sr": images(hf.Swin2SRModel, hf.Swin2SRConfig, {}, patch=1, even=True),
}

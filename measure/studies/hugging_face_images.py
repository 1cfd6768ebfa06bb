"""The models of images that `hugging_face_models.py` lists, and inputs for them."""

from __future__ import annotations

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.donut.modeling_donut_swin import DonutSwinModel
from transformers.models.maskformer.configuration_maskformer_swin import MaskFormerSwinConfig
from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinModel


def image(length: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(1, 3, length, length)}


def page(length: int) -> dict[str, Tensor]:
    """Four rows for every three columns."""
    return {"pixel_values": torch.randn(1, 3, length, 3 * length // 4)}


def image_and_prompt(length: int) -> dict[str, Tensor]:
    return {name: torch.randn(1, 3, length, length) for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")}


def sam(layers: int) -> nn.Module:
    """The vision encoder of SAM-B: the last layer attends to the whole image, the layers before it in windows."""
    config = hf.SamVisionConfig(num_hidden_layers=layers, global_attn_indexes=[layers - 1])
    return hf.SamVisionModel(config)


def vitdet(layers: int) -> nn.Module:
    """ViTDet-B, in windows and on the whole image as SAM."""
    config = hf.VitDetConfig(
        num_hidden_layers=layers, image_size=1024, window_size=14, window_block_indices=list(range(layers - 1)),
        use_relative_position_embeddings=True,
    )  # fmt: skip
    return hf.VitDetModel(config)


def seggpt(layers: int) -> nn.Module:
    """SegGPT-L: the image below its prompt; after the first layer its two streams become one."""
    config = hf.SegGptConfig(
        num_hidden_layers=layers, intermediate_hidden_state_indices=[layers - 1], merge_index=0, drop_path_rate=0.0
    )
    return hf.SegGptModel(config)


def beit(layers: int) -> nn.Module:
    config = hf.BeitConfig(
        num_hidden_layers=layers, image_size=384, use_relative_position_bias=True, drop_path_rate=0.0, vocab_size=32
    )
    return hf.BeitModel(config)


def data2vec(layers: int) -> nn.Module:
    config = hf.Data2VecVisionConfig(num_hidden_layers=layers, use_relative_position_bias=True, drop_path_rate=0.0)
    return hf.Data2VecVisionModel(config)


def swin(layers: int) -> nn.Module:
    """One stage of Swin-B at windows of 7 x 7."""
    return hf.SwinModel(hf.SwinConfig(embed_dim=128, depths=[layers], num_heads=[4], drop_path_rate=0.0))


def donut(layers: int) -> nn.Module:
    """One stage of Donut's Swin, at windows of 10 x 10."""
    config = hf.DonutSwinConfig(
        image_size=[1280, 960], embed_dim=128, depths=[layers], num_heads=[4], window_size=10, drop_path_rate=0.0
    )
    return DonutSwinModel(config)


def maskformer(layers: int) -> nn.Module:
    """One stage of the Swin-B of maskformer-swin-base, at windows of 12 x 12."""
    config = MaskFormerSwinConfig(
        image_size=384, embed_dim=128, depths=[layers], num_heads=[4], window_size=12, drop_path_rate=0.0
    )
    return MaskFormerSwinModel(config)


def swin_v2(layers: int) -> nn.Module:
    """One stage of Swin-v2-B at windows of 16 x 16."""
    config = hf.Swinv2Config(
        image_size=256, embed_dim=128, depths=[layers], num_heads=[4], window_size=16, drop_path_rate=0.0
    )
    return hf.Swinv2Model(config)


def levit(layers: int) -> nn.Module:
    """LeViT-128: its first stage is changed; the small grids of later stages are left."""
    return hf.LevitModel(hf.LevitConfig(depths=[layers] * 3))

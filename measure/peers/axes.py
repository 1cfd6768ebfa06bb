"""Swin's, SAM's and LayoutLMv3's attention as other libraries compute it, with their projections left out."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LayoutLMv3Config, SamVisionConfig, SwinConfig
from transformers.models.layoutlmv3.modeling_layoutlmv3 import LayoutLMv3Encoder, LayoutLMv3SelfAttention
from transformers.models.sam.modeling_sam import SamVisionAttention, SamVisionSdpaAttention
from transformers.models.swin.modeling_swin import SwinAttention, SwinRelativePositionBias

from measure.peers.sequence import split
from relattn.cli.bench.case import Call, Case
from relattn.encodings.grid import GridBias

LAYOUT_TABLES = ("rel_pos_bias", "rel_pos_x_bias", "rel_pos_y_bias")


class Given(nn.Module):
    """A tensor: stands where a projection would give it."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor

    def forward(self, _: Tensor) -> Tensor:
        """Returns the tensor and ignores the input."""
        return self.tensor


def swin_attention(
    implementation: str, projected: Sequence[Tensor], table: Tensor, heads: int, head_dim: int, sizes: tuple[int, int]
) -> Any:
    """Swin's module for a window of `sizes`, with its table; projected: query, key and value."""
    config = SwinConfig()
    config._attn_implementation = implementation
    module: Any = SwinAttention(config, heads * head_dim, heads, 1).eval()
    module.q_proj, module.k_proj, module.v_proj = map(Given, projected)
    module.o_proj = nn.Identity()
    bias: Any = SwinRelativePositionBias(heads, sizes).to(table.device)
    del bias.relative_position_bias_table
    bias.relative_position_bias_table = table
    module.relative_position_bias = bias
    return module


def sam_attention(kind: type[SamVisionAttention], heads: int, head_dim: int) -> Any:
    """SAM's module; the caller gives it `rel_pos_h` and `rel_pos_w`."""
    config = SamVisionConfig(hidden_size=heads * head_dim, num_attention_heads=heads)
    module: Any = kind(config, window_size=0).eval()
    module.qkv, module.proj = nn.Identity(), nn.Identity()
    del module.rel_pos_h, module.rel_pos_w
    return module


def layout_attention(implementation: str, projected: Sequence[Tensor], heads: int, head_dim: int) -> tuple[Any, Any]:
    """LayoutLMv3's encoder, which makes the biases once the caller gave its tables their weights; and its attention."""
    config = LayoutLMv3Config(hidden_size=heads * head_dim, num_attention_heads=heads, num_hidden_layers=0)
    config._attn_implementation = implementation
    encoder: Any = LayoutLMv3Encoder(config)
    for name in LAYOUT_TABLES:
        setattr(encoder, name, nn.Module())
    module: Any = LayoutLMv3SelfAttention(config).eval()
    module.query, module.key, module.value = map(Given, projected)
    return encoder, module


def transformers_on_axes(case: Case) -> Call:
    """SwinAttention, or SAM's or LayoutLMv3's attention, on PyTorch's sdpa."""
    if case.workload.encoding == "grid-bias":
        return _swin(case)
    return _sam(case) if case.workload.encoding == "decomposed" else _layout(case)


def _swin(case: Case) -> Call:
    work, encoding = case.workload, case.encoding
    assert isinstance(encoding, GridBias)
    module = swin_attention("sdpa", _projected(case), encoding.bias, work.heads, work.head_dim, work.grid)
    hidden = _hidden(case)
    return lambda: split(module(hidden)[0], work.heads)


def _sam(case: Case) -> Call:
    """SAM counts query - key, and adds the products unscaled."""
    work, (height, width) = case.workload, case.workload.grid
    assert isinstance(case.encoding, nn.Module)
    of_y, of_x = case.encoding.parameters()
    module, scale = sam_attention(SamVisionSdpaAttention, work.heads, work.head_dim), work.head_dim**-0.5

    def call() -> Tensor:
        module.rel_pos_h, module.rel_pos_w = of_y[0].flip(0) * scale, of_x[0].flip(0) * scale
        fused = torch.stack(_projected(case), dim=2)
        return split(module(fused.view(work.batch, height, width, -1))[0].flatten(1, 2), work.heads)

    return call


def _layout(case: Case) -> Call:
    """LayoutLMv3 scales the biases as the products. x is a box's left edge, y its lower edge."""
    work = case.workload
    assert isinstance(case.encoding, nn.Module)
    biases = list(case.encoding.parameters())
    encoder, module = layout_attention("sdpa", _projected(case), work.heads, work.head_dim)
    order, hidden = torch.arange(work.length, device=work.device).unsqueeze(0), _hidden(case)
    left, bottom = case.places["x"], case.places["y"]
    assert isinstance(left, Tensor)
    assert isinstance(bottom, Tensor)
    boxes = torch.stack([left, torch.zeros_like(left), torch.zeros_like(left), bottom], dim=-1)

    def call() -> Tensor:
        for name, bias in zip(LAYOUT_TABLES, biases, strict=True):
            getattr(encoder, name).weight = bias.t() * work.head_dim**0.5
        return split(module(hidden, position_bias=encoder._compute_position_bias(order, boxes))[0], work.heads)

    return call


def timm_attention(case: Case) -> Call:
    """timm's RelPosBias as the mask of PyTorch's sdpa, as its vision transformers with relative positions run it."""
    layers, encoding = importlib.import_module("timm.layers"), case.encoding
    assert isinstance(encoding, GridBias)
    biases = layers.RelPosBias(window_size=case.workload.grid, num_heads=case.workload.heads).to(case.query.device)
    biases.relative_position_bias_table = encoding.bias
    return lambda: F.scaled_dot_product_attention(case.query, case.key, case.value, attn_mask=biases.get_bias())


def _projected(case: Case) -> list[Tensor]:
    """Query, key and value [B, L, H, D], which is how the modules cut up what their projections give."""
    return [tensor.transpose(1, 2) for tensor in (case.query, case.key, case.value)]


def _hidden(case: Case) -> Tensor:
    """[B, L, 0]: in place of the features that would be projected."""
    return case.query.new_empty(case.workload.batch, case.workload.length, 0)

"""T5's and ALiBi's attention as other libraries compute it, with their projections left out."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor, nn
from transformers import BloomConfig, T5Config
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

import relattn
from relattn.cli.bench.case import Call, Case


class _Part(nn.Module):
    """The index-th of `count` equal parts of the features: stands where a projection would."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__()
        self.index, self.count = index, count

    def forward(self, features: Tensor) -> Tensor:
        return features.chunk(self.count, dim=-1)[self.index]


def transformers_attention(case: Case) -> Call:
    """T5Attention on PyTorch's sdpa, as T5 models run it; or BloomAttention, ALiBi's causal form."""
    if isinstance(case.encoding, relattn.T5Bias):
        return _t5_attention(case, case.encoding)
    return _bloom_attention(case)


def _t5_attention(case: Case, encoding: relattn.T5Bias) -> Call:
    work, key, value = case.workload, case.key, case.value
    width = work.heads * work.head_dim
    config = T5Config(
        d_model=width,
        d_kv=work.head_dim,
        num_heads=work.heads,
        relative_attention_num_buckets=encoding.num_buckets,
        relative_attention_max_distance=encoding.max_distance,
        is_decoder=work.causal,
    )
    config._attn_implementation = "sdpa"
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0, is_causal=work.causal).eval()
    attention.scaling = work.head_dim**-0.5
    attention.relative_attention_bias.weight = encoding.bias
    for name, part in (("q", nn.Identity()), ("k", _Part(0, 2)), ("v", _Part(1, 2)), ("o", nn.Identity())):
        setattr(attention, name, part)

    def call() -> Tensor:
        keys_and_values = torch.cat([_merged(key), _merged(value)], dim=-1)
        output = attention(_merged(case.query), key_value_states=keys_and_values)[0]
        return split(output, work.heads)

    return call


def _bloom_attention(case: Case) -> Call:
    work = case.workload
    config = BloomConfig(hidden_size=work.heads * work.head_dim, n_head=work.heads)
    attention = BloomAttention(config, layer_idx=0).eval()
    attention.query_key_value, attention.dense = nn.Identity(), nn.Identity()  # pyright: ignore
    device = case.query.device
    ones = torch.ones(case.query.shape[0], work.length, device=device)
    future = torch.full((work.length, work.length), torch.finfo(case.query.dtype).min, device=device).triu(1)
    nothing = torch.zeros((), dtype=case.query.dtype, device=device)

    def call() -> Tensor:
        fused = torch.stack([case.query, case.key, case.value], dim=3)  # [B, H, L, 3, D], which Bloom lays out by head
        alibi = build_alibi_tensor(ones, work.heads, case.query.dtype)
        output = attention(fused.transpose(1, 2).flatten(2), nothing, alibi, future.to(case.query.dtype))[0]
        return split(output, work.heads)

    return call


def x_transformers_attention(case: Case) -> Call:
    """x-transformers' Attend with flash=True, and its RelativePositionBias or AlibiPositionalBias."""
    attend = importlib.import_module("x_transformers.attend")
    layers = importlib.import_module("x_transformers.x_transformers")
    work, encoding = case.workload, case.encoding
    attention = attend.Attend(heads=work.heads, causal=work.causal, flash=True)
    if isinstance(encoding, relattn.T5Bias):
        biases = layers.RelativePositionBias(
            1.0, work.causal, encoding.num_buckets, encoding.max_distance, heads=work.heads
        )
        biases.relative_attention_bias.weight = encoding.bias
    else:
        biases = layers.AlibiPositionalBias(work.heads).to(case.query.device, case.query.dtype)

    def call() -> Tensor:
        return attention(case.query, case.key, case.value, attn_bias=biases(work.length, work.length))[0]

    return call


def _merged(tensor: Tensor) -> Tensor:
    """[B, H, L, D] -> [B, L, H D]."""
    return tensor.transpose(1, 2).flatten(2)


def split(tensor: Tensor, heads: int) -> Tensor:
    """[B, L, H D] -> [B, H, L, D]."""
    return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)

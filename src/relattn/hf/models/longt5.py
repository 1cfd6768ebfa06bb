"""LongT5: T5's bias in a window. Transient-global adds sums of whole blocks, which have their own bias."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.models.longt5.modeling_longt5 import (
    LongT5Attention,
    LongT5LocalAttention,
    LongT5Stack,
    LongT5TransientGlobalAttention,
    _make_global_fixed_block_ids,
)

from relattn.equation.tables import wide
from relattn.hf.interface import attend
from relattn.hf.joint import Keys, attend_jointly
from relattn.hf.masks import MaskStructure
from relattn.hf.models.t5 import SharedBias, bucket_terms, buckets_of, heads
from relattn.hf.replacement import Replacement


class RelattnLongT5Attention(SharedBias, LongT5Attention):
    """LongT5Attention on relattn, the decoder's: as T5's."""

    stack = LongT5Stack


class RelattnLongT5LocalAttention(Replacement, LongT5LocalAttention):
    """LongT5LocalAttention on relattn: a window of local_radius tokens on either side."""

    stack = LongT5Stack
    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B L d_model"],
        mask: Bool[Tensor, "B 1 blocks block 3*block"] | None = None,
        position_bias: Float[Tensor, "num_buckets H"] | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """(output, the biases of the buckets, weights by blocks if wanted), under LongT5LocalAttention's arguments.

        Raises ValueError: without a mask.
        """
        if position_bias is None and self.has_relative_attention_bias:
            position_bias = buckets_of(self, self.relative_attention_bias, hidden_states)
        itself = _given(mask)[:, 0].diagonal(self.block_len, -2, -1).flatten(1)  # a token sees itself, padding nothing
        structure = _window(self, itself[:, : hidden_states.shape[1]])
        query, key, value = (heads(self, projection(hidden_states)) for projection in (self.q, self.k, self.v))
        terms = None if position_bias is None else bucket_terms(self, position_bias)
        dropout = self.dropout if self.training else 0.0
        output, weights = attend(self, query, key, value, structure, terms, 1.0, dropout, output_attentions)
        outputs = self.o(output.flatten(2)), position_bias
        return outputs if weights is None else (*outputs, _by_blocks(weights, self.block_len))


class RelattnLongT5TransientGlobalAttention(Replacement, LongT5TransientGlobalAttention):
    """LongT5TransientGlobalAttention on relattn: the window, and a key for each block of global_block_size tokens.

    The first layer hands on the biases of both, side by side.
    """

    stack = LongT5Stack
    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B L d_model"],
        mask: Float[Tensor, "B L"] | None = None,
        position_bias: Float[Tensor, "num_buckets 2H"] | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """(output, biases, weights by blocks if wanted), under LongT5TransientGlobalAttention's arguments.

        Raises ValueError: without a mask.
        """
        mask = _given(mask)
        if position_bias is None:
            tables = self.relative_attention_bias, self.global_relative_attention_bias
            position_bias = torch.cat([buckets_of(self, table, hidden_states) for table in tables], dim=1)
        local_terms, global_terms = (bucket_terms(self, bias) for bias in position_bias.chunk(2, dim=1))
        block, is_block = _make_global_fixed_block_ids(mask, self.global_block_size)
        sums = self.global_input_layer_norm(_block_sums(hidden_states, block, is_block.shape[1]))
        query, key, value, block_key, block_value = (
            heads(self, projection(source))
            for projection, source in (
                (self.q, hidden_states), (self.k, hidden_states), (self.v, hidden_states),
                (self.k, sums), (self.v, sums),
            )
        )  # fmt: skip
        dropout, structure = self.dropout if self.training else 0.0, _window(self, mask)
        if is_block.shape[1] == 0:
            output, weights = attend(self, query, key, value, structure, local_terms, 1.0, dropout, output_attentions)
            by_blocks = None if weights is None else _by_blocks(weights, self.block_len)
        else:
            blocks = MaskStructure(query_position=block.long(), key_mask=is_block.bool())
            near, far = Keys(key, value, structure, local_terms), Keys(block_key, block_value, blocks, global_terms)
            output, both = attend_jointly(self, query, near, far, 1.0, dropout, output_attentions)
            by_blocks = None if both is None else _by_blocks(both[0], self.block_len, both[1])
        outputs = self.o(output.flatten(2)), position_bias
        return outputs if by_blocks is None else (*outputs, by_blocks)


def _given(mask: Tensor | None) -> Tensor:
    """The mask. Without it the originals attend beyond their window, and to the padding of blocks."""
    if mask is None:
        raise ValueError("mask: got None; expected the mask that LongT5Stack makes, which says where tokens are")
    return mask


def _window(module: Any, mask: Tensor) -> MaskStructure:
    """local_radius tokens on either side; any number but 0 is a token."""
    return MaskStructure(window=(module.local_radius, module.local_radius), key_mask=mask.bool())


def _block_sums(
    hidden_states: Float[Tensor, "B L d_model"], block: Int[Tensor, "B L"], count: int
) -> Float[Tensor, "B count d_model"]:
    """The sum of the tokens of each block; padding has none, -1."""
    index = block.long().masked_fill(block < 0, count).unsqueeze(-1).expand_as(hidden_states)
    tokens = wide(hidden_states)
    sums = tokens.new_zeros(tokens.shape[0], count + 1, tokens.shape[2]).scatter_add(1, index, tokens)
    return sums[:, :count].to(hidden_states.dtype)


def _by_blocks(
    weights: Float[Tensor, "B H L L"], block: int, more: Float[Tensor, "B H L G"] | None = None
) -> Float[Tensor, "B blocks H block 3*block+G"]:
    """As the originals return them: the queries of each block, the keys of the block and of its neighbours, and more
    keys.
    """
    rest = -weights.shape[2] % block
    padded = F.pad(weights, (block, block + rest, 0, rest)).unflatten(2, (-1, block))
    near = padded.unfold(-1, 3 * block, block).diagonal(dim1=2, dim2=4).permute(0, 4, 1, 2, 3)
    if more is None:
        return near
    far = F.pad(more, (0, 0, 0, rest)).unflatten(2, (-1, block)).transpose(1, 2)
    return torch.cat([near, far], dim=-1)


REPLACEMENTS = {
    LongT5Attention: RelattnLongT5Attention,
    LongT5LocalAttention: RelattnLongT5LocalAttention,
    LongT5TransientGlobalAttention: RelattnLongT5TransientGlobalAttention,
}
"""The module of transformers, and its replacement."""

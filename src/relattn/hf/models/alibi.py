"""BLOOM, Falcon and MPT: ALiBi, each with the numbers that its model makes."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.models.bloom.modeling_bloom import BloomAttention, dropout_add
from transformers.models.falcon.modeling_falcon import (
    FalconAttention,
    FalconModel,
    apply_rotary_pos_emb,
    build_alibi_tensor,
)
from transformers.models.mpt.modeling_mpt import MptAttention, MptBlock

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.errors import UnsupportedError
from relattn.hf.interface import add_to_scores, attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement
from relattn.hf.whole_model import WholeModel


class RelattnBloomAttention(Replacement, BloomAttention):
    """BloomAttention on relattn: a_j = slope times the number of real tokens before key j.

    A constant may be added to a row of scores, so these equal ALiBi's biases of the distance. They are taken as the
    model made them, in its dtype, also where the attention mask has holes.
    """

    @staticmethod
    def cannot(module: Any) -> str | None:
        """slow_but_exact rounds differently, on purpose."""
        if module.pretraining_tp > 1 and module.slow_but_exact:
            return "slow_but_exact=True adds up the output projection in slices"
        return None

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq width"],
        residual: Float[Tensor, "B Lq width"],
        alibi: Float[Tensor, "BH 1 Lk"],
        attention_mask: MaskStructure | Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output + residual, attention weights if wanted), under BloomAttention's arguments."""
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        structure = as_structure(attention_mask, True, key.shape[2] - query.shape[2])
        dropout = self.attention_dropout.p if self.training else 0.0
        output, weights = attend(
            self, query, key, value, structure, None, self.inv_norm_factor, dropout, output_attentions,
            key_bias=_of_keys(alibi, self.num_heads, query),
        )  # fmt: skip
        return dropout_add(self.dense(output.flatten(2)), residual, self.hidden_dropout, self.training), weights


class RelattnFalconAttention(Replacement, FalconAttention):
    """FalconAttention on relattn: a_j = slope / sqrt(D) times the number of real tokens before key j; or turned q, k.

    A patched model leaves the numbers of the keys to this module. A model that is not patched has added them to its
    mask.
    """

    needs = ("_split_heads",)

    @staticmethod
    def cannot(module: Any) -> str | None:
        """transformers 5.23: the eager formula adds ALiBi a second time: the model's mask has already added it to the
        scores.
        """
        if module.config.alibi and module.config._attn_implementation == "eager":
            return "attn_implementation='eager' adds Falcon's ALiBi twice; load the model with 'sdpa'"
        return None

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq width"],
        alibi: Tensor | None,
        attention_mask: MaskStructure | Tensor | None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under FalconAttention's arguments.

        Raises UnsupportedError: for a mask of pairs beside ALiBi, which the original refuses too.
        """
        if self.config.alibi and alibi is None and isinstance(attention_mask, Tensor):
            raise UnsupportedError(
                f"attention_mask: got shape {list(attention_mask.shape)}; expected a mask of tokens, [batch, keys], "
                "for Falcon's ALiBi counts the real ones"
            )
        query, key, value = (part.transpose(1, 2) for part in self._split_heads(self.query_key_value(hidden_states)))
        if not self.config.alibi:
            assert position_embeddings is not None
            cos, sin = position_embeddings
            query, key = apply_rotary_pos_emb(query, key, cos, sin)
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        structure = as_structure(attention_mask, True, key.shape[2] - query.shape[2])
        key_bias = self._numbers_of_keys(query, key, structure) if self.config.alibi and alibi is None else None
        dropout = self.attention_dropout.p if self.training and self.config.alibi else 0.0
        output, weights = attend(
            self, query, key, value, structure, None, self.inv_norm_factor, dropout, output_attentions,
            key_bias=key_bias,
        )  # fmt: skip
        return self.dense(output.flatten(2)), weights

    def _numbers_of_keys(self, query: Tensor, key: Tensor, structure: MaskStructure) -> Float[Tensor, "#B H Lk"]:
        """As the model makes them: slopes and products in bfloat16, in a model of any dtype."""
        key_mask = structure.key_mask
        real = key.new_ones(1, key.shape[2], dtype=torch.long) if key_mask is None else key_mask.long()
        alibi = build_alibi_tensor(real, self.num_heads, query.dtype)
        return _of_keys(alibi, self.num_heads, query) / math.sqrt(self.head_dim)


class RelattnFalconModel(WholeModel, FalconModel):
    """FalconModel, which leaves ALiBi to its attention, and so adds nothing to its mask."""

    needs = ("use_alibi",)
    use_alibi = property(lambda self: False)  # pyright: ignore[reportAssignmentType]
    """The flag that its forward reads before it makes a mask of pairs; the object's own flag is kept for unpatch."""


def _of_keys(alibi: Float[Tensor, "BH 1 Lk"], num_heads: int, query: Tensor) -> Float[Tensor, "B H Lk"]:
    """The model's numbers, [B, H, Lk], in a dtype that key_bias may have: the query's or float32."""
    per_head = alibi.unflatten(0, (-1, num_heads)).squeeze(2)
    return per_head.to(torch.promote_types(alibi.dtype, query.dtype))


class RelattnMptAttention(Replacement, MptAttention):
    """MptAttention on relattn: the model's row of biases, which ends at the query's own position, is the table."""

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq width"],
        position_bias: Float[Tensor, "H 1 max_seq_len"],
        past_key_values: Any = None,
        attention_mask: MaskStructure | Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under MptAttention's arguments."""
        mixed = self.Wqkv(hidden_states)
        if self.clip_qkv:
            mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = (
            part.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2) for part in mixed.chunk(3, dim=2)
        )
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        position_bias = position_bias.to(torch.promote_types(position_bias.dtype, query.dtype))
        if isinstance(attention_mask, Tensor):  # True where a pair does not attend, and it may look ahead
            structure = as_structure(~attention_mask, True, key.shape[2] - query.shape[2])
            structure, terms = add_to_scores(structure, position_bias[None, :, :, -key.shape[2] :]), None
        else:
            structure = as_structure(attention_mask, True, key.shape[2] - query.shape[2])
            terms = ScoreTerms(bias=OffsetTable(position_bias[:, 0], 1 - position_bias.shape[2], "error"))
        dropout = self.attn_dropout_p if self.training else 0.0
        output, weights = attend(
            self, query, key, value, structure, terms, self.softmax_scale, dropout, self.relattn_with_weights
        )
        return self.out_proj(output.flatten(2)), weights


class RelattnMptBlock(Replacement, MptBlock):
    """MptBlock, which tells its attention whether the weights are wanted."""

    def forward(self, *args: Any, output_attentions: bool = False, **kwargs: Any) -> Any:
        """As MptBlock's."""
        self.attn.relattn_with_weights = output_attentions  # pyright: ignore[reportArgumentType]
        return super().forward(*args, output_attentions=output_attentions, **kwargs)


REPLACEMENTS = {
    BloomAttention: RelattnBloomAttention,
    FalconAttention: RelattnFalconAttention,
    FalconModel: RelattnFalconModel,
    MptAttention: RelattnMptAttention,
    MptBlock: RelattnMptBlock,
}
"""The modules of transformers, and their replacements."""

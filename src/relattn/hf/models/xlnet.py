"""XLNet: Transformer-XL's terms, segments as another axis, and a second stream of queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetModelOutput, XLNetRelativeAttention

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.errors import UnsupportedError
from relattn.hf.interface import attend
from relattn.hf.joint import Keys, attend_jointly
from relattn.hf.masks import MaskStructure
from relattn.hf.replacement import Replacement
from relattn.hf.whole_model import WholeModel

Segments = tuple[Int[Tensor, "B Lq"], Int[Tensor, "B Lk"]]
"""The segments of queries and keys."""


class RelattnXLNetRelativeAttention(Replacement, XLNetRelativeAttention):
    """XLNetRelativeAttention on relattn. As in the original the length comes before the batch."""

    stack = XLNetModel
    by_name = False
    needs = ("post_attention",)

    def forward(
        self,
        h: Float[Tensor, "L B d_model"],
        g: Float[Tensor, "targets B d_model"] | None,
        attn_mask_h: MaskStructure,
        attn_mask_g: MaskStructure,
        r: Float[Tensor, "R 1 d_model"],
        seg_mat: Segments | None,
        mems: Float[Tensor, "M B d_model"] | None = None,
        target_mapping: Float[Tensor, "targets L B"] | None = None,
        output_attentions: bool = False,
    ) -> tuple[Any, ...]:
        """(content stream, query stream or None, weights if wanted), under XLNetRelativeAttention's arguments."""
        states = h if mems is None or mems.dim() <= 1 else torch.cat([mems, h])
        key, value = _heads(states, self.k), _heads(states, self.v)
        rows = torch.einsum("rh,hnd->nrd", r[:, 0].to(self.r.dtype), self.r)
        table = OffsetTable(rows, -states.shape[0], "clamp")

        def attended(query: Tensor, structure: MaskStructure, sees_itself: bool) -> tuple[Tensor, Tensor | None]:
            terms, placed = _terms(self, query, table, structure, seg_mat)
            scale, dropout = self.scale, self.dropout.p if self.training else 0.0
            if structure.key_mask is None or not sees_itself:
                return attend(self, query, key, value, placed, terms, scale, dropout, output_attentions)
            padding = replace(placed, window=(0, 0), key_mask=~structure.key_mask)
            others, itself = (Keys(key, value, which, terms) for which in (placed, padding))
            output, weights = attend_jointly(self, query, others, itself, scale, dropout, output_attentions)
            return output, None if weights is None else weights[0] + weights[1]

        of_streams = [(h, *attended(_heads(h, self.q), attn_mask_h, sees_itself=True))]
        if g is not None:
            query = torch.einsum("mbh,hnd->mbnd", g, self.q)
            if target_mapping is not None:
                query = torch.einsum("mbnd,mlb->lbnd", query, target_mapping)
            output, weights = attended(query.permute(1, 2, 0, 3), attn_mask_g, sees_itself=False)
            if target_mapping is not None:
                output = torch.einsum("blnd,mlb->bmnd", output, target_mapping)
            of_streams.append((g, output, weights))
        streams = [self.post_attention(stream, output.transpose(0, 1)) for stream, output, _ in of_streams]
        outputs = streams[0], streams[1] if len(streams) > 1 else None
        if not output_attentions:
            return outputs
        shown = [weights.permute(2, 3, 0, 1) for _, _, weights in of_streams if weights is not None]
        return *outputs, shown[0] if g is None else tuple(shown)


def _heads(states: Float[Tensor, "L B d_model"], weight: Float[Tensor, "d_model H D"]) -> Float[Tensor, "B H L D"]:
    return torch.einsum("lbh,hnd->bnld", states, weight)


def _terms(
    module: Any,
    query: Float[Tensor, "B H L D"],
    table: OffsetTable,
    structure: MaskStructure,
    segments: Segments | None,
) -> tuple[ScoreTerms, MaskStructure]:
    """q + u, q + v and W R; and on the axis of segments (q + s) . (e_1 - e_0) where two differ.

    A constant may be added to a query's whole row. So (q + s) . e_0, the term of equal segments, is left out.
    """
    u, v, s = (bias.unsqueeze(1) for bias in (module.r_w_bias, module.r_r_bias, module.r_s_bias))
    terms = ScoreTerms(query=query + u, relative_query=query + v, relative_keys=table)
    if segments is None:
        return terms, structure
    apart = ((query + s) * (module.seg_embed[1] - module.seg_embed[0]).unsqueeze(1)).sum(-1, keepdim=True)
    differ = OffsetTable(query.new_tensor([1.0, 0.0, 1.0]).view(1, 3, 1), -1, "clamp")
    placed = replace(
        structure,
        query_position={"sequence": structure.query_position, "segment": segments[0]},
        key_position={"sequence": 0, "segment": segments[1]},
    )
    return terms + ScoreTerms(relative_query=apart, relative_keys=differ).on("segment"), placed


class RelattnXLNetModel(WholeModel, XLNetModel):
    """XLNetModel, which makes no mask of pairs unless it gets one, and no matrix of segments.

    Dropout of the positions is drawn once for the batch.
    """

    by_name = False
    needs = ("relative_positional_encoding", "cache_mem")

    def forward(
        self,
        input_ids: Int[Tensor, "B L"] | None = None,
        attention_mask: Tensor | None = None,
        mems: Any = None,
        perm_mask: Float[Tensor, "B L L"] | None = None,
        target_mapping: Float[Tensor, "B targets L"] | None = None,
        token_type_ids: Int[Tensor, "B L"] | None = None,
        input_mask: Tensor | None = None,
        inputs_embeds: Float[Tensor, "B L d_model"] | None = None,
        use_mems: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """The streams' states and the memories, under XLNetModel's arguments.

        Raises ValueError: for both or none of input_ids and inputs_embeds, and for both attention_mask and input_mask;
        UnsupportedError: with bi_data=True.
        """
        _check(self, (input_ids, inputs_embeds), (attention_mask, input_mask))
        config = self.config
        use_mems = (config.use_mems_train if self.training else config.use_mems_eval) if use_mems is None else use_mems
        with_weights = config.output_attentions if output_attentions is None else output_attentions
        with_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = self.word_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        batch, length = states.shape[:2]
        memory = 0 if mems is None or mems[0] is None else mems[0].shape[0]
        padding = input_mask > 0 if input_mask is not None else None
        if attention_mask is not None:
            padding = attention_mask < 1
        if padding is not None and not torch.compiler.is_compiling() and not bool(padding.any()):
            padding = None
        h, g = self.dropout(states.transpose(0, 1)), None
        if target_mapping is not None:
            target_mapping = target_mapping.permute(1, 2, 0)
            g = self.dropout(self.mask_emb.expand(target_mapping.shape[0], batch, -1))
        rows = self.relative_positional_encoding(length, memory + length, device=h.device)
        content, queries = _structures(self, length, memory, padding, perm_mask)
        layer_arguments = {
            "attn_mask_h": content, "attn_mask_g": queries, "r": self.dropout(rows), "target_mapping": target_mapping,
            "seg_mat": None if token_type_ids is None else (token_type_ids, F.pad(token_type_ids, (memory, 0))),
            "output_attentions": with_weights,
        }  # fmt: skip
        new_mems, layer_streams, weights = [], [(h, g)], []
        for layer, before in zip(self.layer, [None] * len(self.layer) if mems is None else mems, strict=True):
            new_mems.append(self.cache_mem(h, before) if use_mems else None)
            h, g, *more = layer(h, g, mems=before, **layer_arguments)
            layer_streams.append((h, g))
            weights += more
        output = XLNetModelOutput(
            last_hidden_state=self.dropout(h if g is None else g).transpose(0, 1).contiguous(),
            mems=tuple(new_mems) if use_mems else None,  # pyright: ignore[reportArgumentType]
            hidden_states=_batch_first(layer_streams) if with_states else None,
            attentions=tuple(map(_heads_first, weights)) if with_weights else None,
        )
        as_dict = config.return_dict if return_dict is None else return_dict
        return output if as_dict else output.to_tuple()


def _check(model: Any, embedded: tuple[Tensor | None, ...], masks: tuple[Tensor | None, ...]) -> None:
    """Checks the arguments of which only one may be given, and the one setting that is not supported."""
    if sum(one is not None for one in embedded) != 1:
        raise ValueError("input_ids, inputs_embeds: got both or none of them; expected one")
    if all(one is not None for one in masks):
        raise ValueError("attention_mask, input_mask: got both; expected one, the other says the opposite")
    if model.bi_data:
        raise UnsupportedError(
            "bi_data=True reads half of the batch backwards, and relattn has one table of positions for all of it; "
            "call relattn.hf.unpatch"
        )


def _structures(
    model: Any, length: int, memory: int, padding: Bool[Tensor, "B L"] | None, perm_mask: Tensor | None
) -> tuple[MaskStructure, MaskStructure]:
    """The keys that the content stream sees, itself included, and the keys that the query stream sees.

    perm_mask is a mask of pairs, and all other masks go into it. As in the original, a query from which it hides
    everything sees all keys in the same way.
    """
    causal = model.attn_type == "uni"
    window = (memory, None) if causal and model.same_length else None
    if perm_mask is None:
        key_mask = None if padding is None else F.pad(~padding, (memory, 0), value=True)
        structure = MaskStructure(query_position=memory, is_causal=causal, window=window, key_mask=key_mask)
        return structure, structure
    hidden = perm_mask > 0 if padding is None else (perm_mask > 0) | padding.unsqueeze(1)
    place = torch.arange(memory + length, device=hidden.device)
    offsets = place - place[memory:].unsqueeze(1)
    hidden = F.pad(hidden, (memory, 0))
    if causal:
        hidden = hidden | (offsets > 0)
    if window is not None:
        hidden = hidden | (offsets < -memory)
    lowest = -65500.0 if model.dtype == torch.float16 else -1e30
    both = (
        torch.zeros(which.shape, dtype=model.dtype, device=which.device).masked_fill(which, lowest).unsqueeze(1)
        for which in (hidden & (offsets != 0), hidden)
    )
    content, queries = (MaskStructure(query_position=memory, attn_mask=pairs) for pairs in both)
    return content, queries


def _batch_first(streams: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, ...]:
    """The states of every layer, those of both streams one after the other."""
    return tuple(one.transpose(0, 1).contiguous() for pair in streams for one in pair if one is not None)


def _heads_first(weights: Any) -> Any:
    """[Lq, Lk, B, H] as [B, H, Lq, Lk], those of two streams side by side."""
    if isinstance(weights, tuple):
        return tuple(map(_heads_first, weights))
    return weights.permute(2, 3, 0, 1).contiguous()


REPLACEMENTS = {XLNetRelativeAttention: RelattnXLNetRelativeAttention, XLNetModel: RelattnXLNetModel}
"""The module of transformers, and its replacement."""

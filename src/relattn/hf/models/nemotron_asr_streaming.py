"""Nemotron-ASR-Streaming: Transformer-XL's terms in chunks, over cached frames and new ones."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from transformers import DynamicCache
from transformers.masking_utils import bidirectional_mask_function
from transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming import (
    NemotronAsrStreamingEncoder,
    NemotronAsrStreamingEncoderAttention,
    NemotronAsrStreamingEncoderCausalConvPaddingCache,
    NemotronAsrStreamingEncoderModelOutput,
)
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from relattn.hf.chunks import Chunks
from relattn.hf.mask_functions import relattn_mask
from relattn.hf.masks import as_structure
from relattn.hf.models.parakeet import relative_attention_of, through_layers
from relattn.hf.names import CACHE
from relattn.hf.replacement import Replacement
from relattn.hf.whole_model import WholeModel


class RelattnNemotronAsrStreamingEncoderAttention(Replacement, NemotronAsrStreamingEncoderAttention):
    """NemotronAsrStreamingEncoderAttention on relattn."""

    stack = NemotronAsrStreamingEncoder
    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq width"],
        position_embeddings: Float[Tensor, "1 2Lk-1 width"],
        attention_mask: Chunks | Bool[Tensor, "B 1 Lq Lk"] | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under NemotronAsrStreamingEncoderAttention's arguments."""
        cached = position_embeddings.shape[1] // 2 + 1 - hidden_states.shape[1]
        structure = as_structure(attention_mask, False, cached)
        return relative_attention_of(self, hidden_states, position_embeddings, structure, past_key_values, kwargs)


class RelattnNemotronAsrStreamingEncoder(WholeModel, NemotronAsrStreamingEncoder):
    """NemotronAsrStreamingEncoder, whose layers get chunks instead of a mask of pairs.

    Dropout of the positions is drawn once for a batch.
    """

    by_name = False
    needs = ("_get_output_attention_mask", "_resolve_attn_context")

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_features: Float[Tensor, "B features mels"],
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        output_attention_mask: bool = True,
        use_cache: bool | None = None,
        padding_cache: Any = None,
        num_lookahead_tokens: int | None = None,
        **kwargs: Any,
    ) -> NemotronAsrStreamingEncoderModelOutput:
        """The frames' states, a mask of speech frames, and the caches, under the original's arguments."""
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if use_cache and padding_cache is None:
            padding_cache = NemotronAsrStreamingEncoderCausalConvPaddingCache()
        states = self.subsampling(input_features, attention_mask, padding_cache=padding_cache) * self.input_scale
        speech = None
        if attention_mask is not None:
            speech = self._get_output_attention_mask(attention_mask, target_length=states.shape[1])
        chunks = _chunks(self, states, speech, past_key_values, num_lookahead_tokens)
        hidden = chunks.queries_without_keys()
        layer_arguments = {
            "attention_mask": chunks, "all_masked_rows": None if hidden is None else hidden.unsqueeze(1),
            CACHE: past_key_values, "padding_cache": padding_cache, "use_cache": use_cache,
        }  # fmt: skip
        positions = self.encode_positions(states[:1], cached_frames=chunks.lengths[1] - states.shape[1])
        states = through_layers(self, states, positions, {**kwargs, **layer_arguments})
        return NemotronAsrStreamingEncoderModelOutput(
            last_hidden_state=states,  # pyright: ignore[reportArgumentType]
            attention_mask=speech.int() if speech is not None and output_attention_mask else None,
            padding_cache=padding_cache,
            **{CACHE: past_key_values},
        )


def _chunks(
    encoder: Any,
    states: Float[Tensor, "B Lq width"],
    speech: Bool[Tensor, "B Lq"] | None,
    cache: Any,
    lookahead: int | None,
) -> Chunks:
    """Chunks of a frame and its lookahead, and as many chunks before as the left context holds completely.

    Padding is counted as transformers does: from the first frame of the stream on.
    """
    queries = states.shape[1]
    start, keys, first = 0, queries, 0
    if cache is not None:
        start, (keys, first) = int(cache.get_query_offset()), cache.get_mask_sizes(queries, 0)
    mask = relattn_mask(states.shape[0], queries, keys, start, first, bidirectional_mask_function, speech)
    left, right = encoder._resolve_attn_context(lookahead)
    return Chunks(
        query_position=start, key_position=first, key_mask=mask.key_mask, size=right + 1,
        left=left // (right + 1) if left >= 0 else None, lengths=(queries, keys),
    )  # fmt: skip


REPLACEMENTS = {
    NemotronAsrStreamingEncoderAttention: RelattnNemotronAsrStreamingEncoderAttention,
    NemotronAsrStreamingEncoder: RelattnNemotronAsrStreamingEncoder,
}
"""The modules of transformers, and their replacements."""

"""The encoders of Wav2Vec2-Conformer, Wav2Vec2-Bert and both SeamlessM4T."""

from typing import Any

import transformers as hf
from torch import nn

from tests.peers.cases.case import HEADS, VOCABULARY, WIDTH, Case, at_tokens, frames

SPEECH = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24,
          "conv_depthwise_kernel_size": 3}  # fmt: skip
SEAMLESS = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "speech_encoder_layers": 2,
            "speech_encoder_attention_heads": HEADS, "speech_encoder_intermediate_size": 24,
            "conv_depthwise_kernel_size": 3, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
            "feature_projection_input_dim": 12}  # fmt: skip


def speech(model: type, config: type, position: str, **changes: Any) -> Case:
    """The encoder of a speech model alone: what stands before it has no attention."""
    settings = {**SPEECH, "position_embeddings_type": position, **changes}

    def make(_: int) -> nn.Module:
        encoder = model(config(**settings)).encoder
        encoder.pos_conv_embed = None  # Wav2Vec2-Conformer keeps it from Wav2Vec2, and does not call it
        return encoder

    return Case(make, frames, 2, at_tokens, key_biases={"linear_k.bias": "linear_k.weight"})


def wav2vec2_conformer(position: str) -> Case:
    convolutions = {"conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (8,), "num_feat_extract_layers": 1}
    return speech(hf.Wav2Vec2ConformerModel, hf.Wav2Vec2ConformerConfig, position, **convolutions)


def wav2vec2_bert(position: str) -> Case:
    reach = {"left_max_position_embeddings": 4, "right_max_position_embeddings": 2}
    return speech(hf.Wav2Vec2BertModel, hf.Wav2Vec2BertConfig, position, **reach)


def seamless(version: str, position: str, **changes: Any) -> Case:
    config, model = (getattr(hf, f"SeamlessM4T{version}{part}") for part in ("Config", "ForSpeechToText"))
    settings = {**SEAMLESS, "position_embeddings_type": position, **changes}
    return Case(
        lambda _: model(config(**settings)).speech_encoder.encoder, frames, 3 if version == "v2" else 2, at_tokens,
        key_biases={"linear_k.bias": "linear_k.weight"}, attentions=version != "v2",
    )  # fmt: skip


CASES = {
    "wav2vec2_conformer": wav2vec2_conformer("relative"),
    "wav2vec2_conformer_rotary": wav2vec2_conformer("rotary"),
    "wav2vec2_bert": wav2vec2_bert("relative_key"),
    "wav2vec2_bert_relative": wav2vec2_bert("relative"),
    "seamless_m4t": seamless("", "relative"),
    "seamless_m4t_v2": seamless(
        "v2", "relative_key", left_max_position_embeddings=4, right_max_position_embeddings=2
    ),
    "seamless_m4t_v2_chunks": seamless(
        "v2", "relative_key", speech_encoder_chunk_size=4, speech_encoder_left_chunk_num=1
    ),
}  # fmt: skip

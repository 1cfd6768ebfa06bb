"""Small randomly initialised models of every architecture that `relattn.hf.patch` changes, and inputs for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

BATCH, LENGTH, TARGET, VOCABULARY, WIDTH, HEADS = 2, 11, 7, 40, 16, 4

TEXT = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
T5 = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": HEADS}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "decoder_start_token_id": 0}
DEBERTA = {**TEXT, "intermediate_size": 24, "relative_attention": True, "type_vocab_size": 0}
SPEECH = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24,
          "conv_depthwise_kernel_size": 3}  # fmt: skip
SEAMLESS = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "speech_encoder_layers": 2,
            "speech_encoder_attention_heads": HEADS, "speech_encoder_intermediate_size": 24,
            "conv_depthwise_kernel_size": 3, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
            "feature_projection_input_dim": 12}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model and how to call it.

    make: the model. key_biases: the ends of the names of parameters whose gradients cancel (a vector added to every
    key), each with the end of the weight's name beside it. replaced: how many modules `patch` replaces.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    replaced: int
    output: Callable[[Any, dict[str, Tensor]], Tensor]
    key_biases: dict[str, str] = field(default_factory=dict)
    generates: bool = False


def padding() -> Tensor:
    """The first row ends early, the second begins late."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, LENGTH - 3 :] = 0
    mask[1, :2] = 0
    return mask


def tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH)), "attention_mask": padding()}


def pairs_of_texts() -> dict[str, Tensor]:
    return {**tokens(), "decoder_input_ids": torch.randint(3, VOCABULARY, (BATCH, TARGET))}


def frames() -> dict[str, Tensor]:
    """A speech encoder's input; speech is padded at the end."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[0, LENGTH - 3 :] = False
    return {"hidden_states": torch.randn(BATCH, LENGTH, WIDTH), "attention_mask": mask}


def at_tokens(output: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The last hidden state (a list of all tokens, padding left out, which nobody reads)."""
    states = output if isinstance(output, Tensor) else output[0]
    return states[inputs["attention_mask"].bool()]


def at_targets(output: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The decoder's output, which has no padding."""
    return output[0]


def t5(kind: str, **changes: Any) -> Case:
    config, model = (getattr(hf, f"{kind}{part}") for part in ("Config", "ForConditionalGeneration"))
    return Case(lambda: model(config(**T5, **changes)), pairs_of_texts, 6, at_targets, generates=True)


def deberta(**changes: Any) -> Case:
    return Case(lambda: hf.DebertaModel(hf.DebertaConfig(**DEBERTA, **changes)), tokens, 3, at_tokens)


def deberta_v2(**changes: Any) -> Case:
    biases = {"key_proj.bias": "key_proj.weight"}
    return Case(lambda: hf.DebertaV2Model(hf.DebertaV2Config(**DEBERTA, **changes)), tokens, 3, at_tokens, biases)


def speech(model: type, config: type, position: str, **changes: Any) -> Case:
    """The encoder of a speech model alone: what stands before it has no attention."""
    settings = {**SPEECH, "position_embeddings_type": position, **changes}

    def make() -> nn.Module:
        encoder = model(config(**settings)).encoder
        encoder.pos_conv_embed = None  # Wav2Vec2-Conformer keeps it from Wav2Vec2, and does not call it
        return encoder

    return Case(make, frames, 2, at_tokens, {"linear_k.bias": "linear_k.weight"})


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
        lambda: model(config(**settings)).speech_encoder.encoder, frames, 3 if version == "v2" else 2, at_tokens,
        {"linear_k.bias": "linear_k.weight"},
    )  # fmt: skip


def vits(**changes: Any) -> Case:
    settings = {**TEXT, "ffn_dim": 24, "flow_size": 8, "layerdrop": 0.0, **changes}

    def inputs() -> dict[str, Tensor]:
        speech_like = frames()
        return {**speech_like, "padding_mask": speech_like["attention_mask"].unsqueeze(-1).float()}

    biases = {"k_proj.bias": "k_proj.weight"}
    return Case(lambda: hf.VitsModel(hf.VitsConfig(**settings)).text_encoder.encoder, inputs, 2, at_tokens, biases)


def bloom(heads: int) -> Case:
    settings = {"vocab_size": VOCABULARY, "hidden_size": 4 * heads, "n_layer": 2, "n_head": heads, "pad_token_id": 0}
    return Case(lambda: hf.BloomForCausalLM(hf.BloomConfig(**settings)), tokens, 2, at_tokens, generates=True)


def mpt(heads: int) -> Case:
    settings = {"vocab_size": VOCABULARY, "d_model": 4 * heads, "n_layers": 2, "n_heads": heads, "max_seq_len": 32,
                "pad_token_id": 0, "eos_token_id": 2}  # fmt: skip
    return Case(lambda: hf.MptForCausalLM(hf.MptConfig(**settings)), tokens, 4, at_tokens, generates=True)


BOTH = ["c2p", "p2c"]
CASES: dict[str, Case] = {
    "t5": t5("T5"),
    "mt5": t5("MT5"),
    "flan_t5": t5("T5", feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "umt5": t5("UMT5"),
    "deberta": deberta(pos_att_type=BOTH, max_relative_positions=5),
    "deberta_c2p": deberta(pos_att_type=["c2p"], max_relative_positions=-1),
    "deberta_v3": deberta_v2(
        pos_att_type=BOTH, position_buckets=6, max_relative_positions=8, share_att_key=True, norm_rel_ebd="layer_norm"
    ),
    "deberta_v2_convolution": deberta_v2(
        pos_att_type=BOTH, position_buckets=6, max_relative_positions=8, share_att_key=True, conv_kernel_size=3
    ),
    "deberta_v2_p2c": deberta_v2(pos_att_type=["p2c"], max_relative_positions=5, share_att_key=False),
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
    "vits": vits(window_size=3),
    "vits_of_one_window": vits(window_size=20),
    "bloom": bloom(4),
    "bloom_6_heads": bloom(6),
    "mpt": mpt(4),
    "mpt_6_heads": mpt(6),
}  # fmt: skip
"""By architecture; names after it say which of its settings."""


def made(name: str, **config: Any) -> nn.Module:
    """The model in evaluation mode; config: changed settings.

    Its parameters are drawn anew, so that all of them matter and scores are of size one.
    """
    model = CASES[name].make().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.0 if "emb" in name else parameter.shape[-1] ** -0.5)
            else:
                parameter.normal_(mean=float(name.endswith("weight")), std=0.2)
    for setting, value in config.items():
        setattr(model.config, setting, value)
    return model

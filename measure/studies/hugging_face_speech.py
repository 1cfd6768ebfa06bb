"""The models of speech, music and sound that `hugging_face_models.py` lists, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer import FastSpeech2ConformerEncoder
from transformers.models.granite_speech.modeling_granite_speech import GraniteSpeechCTCEncoder
from transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming import NemotronAsrStreamingEncoder
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import Phi4MultimodalAudioModel
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2SpeechEncoder


class Frames(nn.Module):
    """Replaces a subsampling: the input is already the result of the subsampling."""

    def forward(self, frames: Tensor, *_: Any, **__: Any) -> Tensor:
        return frames


def speech(width: int, name: str = "hidden_states") -> Callable[[int], dict[str, Tensor]]:
    """The input of an encoder after its convolutions."""
    return lambda length: {name: torch.randn(1, length, width)}


def recording(name: str) -> Callable[[int], dict[str, Tensor]]:
    """Mel features of 10 ms; eight of them become a frame."""
    return lambda frames: {name: torch.randn(1, 8 * frames, 80)}


def unmasked_recording(frames: int) -> dict[str, Any]:
    return recording("hidden_states")(frames) | {"mask": None}


def phonemes(length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 38, (1, length)), "padding_mask": torch.ones(1, length, 1)}


def spectrogram(length: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(1, 1, length, 64)}


def wav2vec2_bert(layers: int) -> nn.Module:
    config = hf.Wav2Vec2BertConfig(num_hidden_layers=layers, layerdrop=0.0, apply_spec_augment=False)
    return hf.Wav2Vec2BertModel(config).encoder


def wav2vec2_conformer(layers: int) -> nn.Module:
    """wav2vec2-conformer-rel-pos-large."""
    config = hf.Wav2Vec2ConformerConfig(
        hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16, intermediate_size=4096, layerdrop=0.0
    )
    encoder: Any = hf.Wav2Vec2ConformerModel(config).encoder
    return encoder


def seamless_v2(layers: int) -> nn.Module:
    config = hf.SeamlessM4Tv2Config(speech_encoder_layers=layers, speech_encoder_layerdrop=0.0)
    return SeamlessM4Tv2SpeechEncoder(config).encoder


def wavlm(layers: int) -> nn.Module:
    encoder: Any = hf.WavLMModel(hf.WavLMConfig(num_hidden_layers=layers, layerdrop=0.0)).encoder
    return encoder


def speecht5(layers: int) -> nn.Module:
    model: Any = hf.SpeechT5Model(hf.SpeechT5Config(encoder_layers=layers, encoder_layerdrop=0.0))
    return model.encoder.wrapped_encoder


def sew_d(layers: int) -> nn.Module:
    config: dict[str, Any] = {"num_hidden_layers": layers, "layerdrop": 0.0}
    return hf.SEWDModel(hf.SEWDConfig(**config)).encoder


def parakeet(layers: int) -> nn.Module:
    return hf.ParakeetEncoder(hf.ParakeetEncoderConfig(num_hidden_layers=layers, layerdrop=0.0))


def parakeet_frames(layers: int) -> nn.Module:
    """For an hour of audio: its convolutions alone need over 14 GiB."""
    encoder: Any = parakeet(layers)
    encoder.subsampling = Frames()
    return encoder


def nemotron(layers: int) -> nn.Module:
    """Without the factor on its input: the model would scale the input in place in every call."""
    config = hf.NemotronAsrStreamingEncoderConfig(num_hidden_layers=layers, layerdrop=0.0, scale_input=False)
    encoder: Any = NemotronAsrStreamingEncoder(config)
    encoder.subsampling = Frames()
    return encoder


def granite(layers: int) -> nn.Module:
    return GraniteSpeechCTCEncoder(hf.GraniteSpeechEncoderConfig(num_layers=layers))


def phi4(layers: int) -> nn.Module:
    return Phi4MultimodalAudioModel(hf.Phi4MultimodalAudioConfig(num_blocks=layers))


def fastspeech2(layers: int) -> nn.Module:
    """The decoder, which has a frame for every column of the spectrogram."""
    config = hf.FastSpeech2ConformerConfig(decoder_layers=layers)
    return FastSpeech2ConformerEncoder(config, config.decoder_config)


def vits(layers: int) -> nn.Module:
    encoder: Any = hf.VitsModel(hf.VitsConfig(num_hidden_layers=layers, layerdrop=0.0)).text_encoder
    return encoder


def pop2piano(layers: int) -> nn.Module:
    config = hf.Pop2PianoConfig(vocab_size=32, num_layers=layers, num_decoder_layers=1)
    return hf.Pop2PianoForConditionalGeneration(config).encoder


def clap(layers: int) -> nn.Module:
    """One stage of HTS-AT."""
    return hf.ClapAudioModel(hf.ClapAudioConfig(depths=[layers], num_attention_heads=[4]))

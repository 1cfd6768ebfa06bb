"""The models that `benchmarks/hugging_face.py` measures: published sizes, few layers, random weights, batch 1.

A size that is not written here is the default of transformers' configuration, which is that of the model named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn


@dataclass(frozen=True)
class Subject:
    """A model of `layers` layers, an input of a length for it, the lengths that are measured, and their unit.

    memory: lengths at which memory alone is measured, for one step there takes minutes. forward: those at which that
    is done for the forward pass alone. warm: the length of a first call, which brings in the libraries' pages.
    """

    shown: str
    make: Callable[[int], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    lengths: tuple[int, ...]
    unit: str = "tokens"
    memory: tuple[int, ...] = ()
    forward: tuple[int, ...] = ()
    warm: int = 128


def text(length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 32, (1, length))}


def speech(width: int) -> Callable[[int], dict[str, Tensor]]:
    """What an encoder gets behind its convolutions."""
    return lambda length: {"hidden_states": torch.randn(1, length, width)}


def image(length: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(1, 3, length, length)}


def t5(layers: int) -> nn.Module:
    config = hf.T5Config(vocab_size=32, d_model=768, d_kv=64, d_ff=3072, num_layers=layers, num_heads=12)
    return hf.T5EncoderModel(config)


def longt5(layers: int) -> nn.Module:
    config = hf.LongT5Config(vocab_size=32, d_model=768, d_ff=2048, num_layers=layers, num_heads=12)
    return hf.LongT5EncoderModel(config)


def mpnet(layers: int) -> nn.Module:
    return hf.MPNetModel(hf.MPNetConfig(vocab_size=32, num_hidden_layers=layers, max_position_embeddings=8194))


def deberta_v3(layers: int) -> nn.Module:
    config = hf.DebertaV2Config(
        vocab_size=32, hidden_size=768, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=256, max_position_embeddings=512,
        norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip
    return hf.DebertaV2Model(config)


def xlnet(layers: int) -> nn.Module:
    return hf.XLNetModel(hf.XLNetConfig(vocab_size=32, d_model=768, n_layer=layers, n_head=12, d_inner=3072))


def funnel(layers: int) -> nn.Module:
    return hf.FunnelBaseModel(hf.FunnelConfig(vocab_size=32, block_sizes=[layers]))


def bloom(layers: int) -> nn.Module:
    return hf.BloomModel(hf.BloomConfig(vocab_size=32, hidden_size=1024, n_layer=layers, n_head=16, use_cache=False))


def falcon(layers: int) -> nn.Module:
    config = hf.FalconConfig(
        vocab_size=32, hidden_size=2048, num_hidden_layers=layers, num_attention_heads=32, alibi=True,
        multi_query=False, parallel_attn=False, bias=True, use_cache=False,
    )  # fmt: skip
    return hf.FalconModel(config)


def wav2vec2_bert(layers: int) -> nn.Module:
    config = hf.Wav2Vec2BertConfig(num_hidden_layers=layers, layerdrop=0.0, apply_spec_augment=False)
    return hf.Wav2Vec2BertModel(config).encoder


def wavlm(layers: int) -> nn.Module:
    encoder: Any = hf.WavLMModel(hf.WavLMConfig(num_hidden_layers=layers, layerdrop=0.0)).encoder
    return encoder


def speecht5(layers: int) -> nn.Module:
    config = hf.SpeechT5Config(encoder_layers=layers, encoder_layerdrop=0.0)
    return hf.SpeechT5Model(config).encoder.wrapped_encoder


def sew_d(layers: int) -> nn.Module:
    return hf.SEWDModel(hf.SEWDConfig(num_hidden_layers=layers, layerdrop=0.0)).encoder


def parakeet(layers: int) -> nn.Module:
    return hf.ParakeetEncoder(hf.ParakeetEncoderConfig(num_hidden_layers=layers, layerdrop=0.0))


def sam(layers: int) -> nn.Module:
    """The vision encoder of SAM-B: the last of the layers attends to the whole image, those before it in windows."""
    config = hf.SamVisionConfig(num_hidden_layers=layers, global_attn_indexes=[layers - 1])
    return hf.SamVisionModel(config)


def beit(layers: int) -> nn.Module:
    config = hf.BeitConfig(
        num_hidden_layers=layers, image_size=384, use_relative_position_bias=True, drop_path_rate=0.0, vocab_size=32
    )
    return hf.BeitModel(config)


def swin_v2(layers: int) -> nn.Module:
    """One stage of Swin-v2-B at windows of 16 x 16."""
    config = hf.Swinv2Config(
        image_size=256, embed_dim=128, depths=[layers], num_heads=[4], window_size=16, drop_path_rate=0.0
    )
    return hf.Swinv2Model(config)


def layoutlm(layers: int) -> nn.Module:
    config = hf.LayoutLMv3Config(
        vocab_size=32, num_hidden_layers=layers, max_position_embeddings=4098, visual_embed=False
    )
    return hf.LayoutLMv3Model(config)


def document(length: int) -> dict[str, Tensor]:
    corners = torch.randint(0, 500, (1, length, 2))
    return text(length) | {"bbox": torch.cat((corners, corners + torch.randint(0, 500, (1, length, 2))), -1)}


def recording(frames: int) -> dict[str, Tensor]:
    """Mel features of 10 ms, of which eight become a frame."""
    return {"input_features": torch.randn(1, 8 * frames, 80)}


SUBJECTS = {
    "t5": Subject("T5-base, encoder", t5, text, (512, 2048)),
    "longt5": Subject("LongT5-base, encoder", longt5, text, (2048,)),
    "mpnet": Subject("MPNet-base", mpnet, text, (512,), memory=(8192,)),
    "deberta_v2": Subject("DeBERTa-v3-base", deberta_v3, text, (512, 2048)),
    "xlnet": Subject("XLNet-base", xlnet, text, (2048,)),
    "funnel": Subject("Funnel, one block", funnel, text, (2048,)),
    "bloom": Subject("BLOOM-560m", bloom, text, (2048,)),
    "falcon": Subject("Falcon-RW-1B", falcon, text, (2048,)),
    "wav2vec2_bert": Subject("Wav2Vec2-Bert, encoder", wav2vec2_bert, speech(1024), (1500,), "frames"),
    "wavlm": Subject("WavLM-base, encoder", wavlm, speech(768), (3000,), "frames (60 s)"),
    "speecht5": Subject("SpeechT5, encoder", speecht5, speech(768), (1500,), "frames"),
    "sew_d": Subject("SEW-D, encoder", sew_d, speech(768), (3000,), "frames"),
    "parakeet": Subject("Parakeet 1.1B, encoder", parakeet, recording, (4000,), "frames", forward=(45000,)),
    "sam": Subject("SAM-B, vision encoder", sam, image, (1024,), "pixels a side", warm=1024),
    "beit": Subject("BEiT-base at 384", beit, image, (384,), "pixels a side", warm=384),
    "swin_v2": Subject("Swin-v2-B, first stage", swin_v2, image, (256,), "pixels a side", warm=256),
    "layoutlm": Subject("LayoutLMv3-base", layoutlm, document, (512,), memory=(4096,)),
}
"""By a short name, the key of the committed figures."""

"""The models of text and of documents that `hugging_face_models.py` lists, and inputs for them."""

# Configurations take more than they declare.
# pyright: reportCallIssue=false
from __future__ import annotations

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.inkling import InklingTextConfig
from transformers.models.inkling.modeling_inkling import InklingTextModel
from transformers.models.inkling2 import Inkling2TextConfig
from transformers.models.inkling2.modeling_inkling2 import Inkling2TextModel
from transformers.models.layoutlmv2.modeling_layoutlmv2 import LayoutLMv2Encoder


def text(length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 32, (1, length))}


def padded(length: int) -> dict[str, Tensor]:
    """Four texts, of the length, a quarter of it twice, and an eighth."""
    lengths = torch.tensor([length, length // 4, length // 4, length // 8])
    mask = torch.arange(length) < lengths[:, None]
    return {"input_ids": torch.randint(3, 32, (4, length)), "attention_mask": mask.long()}


def packed(length: int) -> dict[str, Tensor]:
    """Eight texts of an eighth of the length in one row: positions begin again."""
    return text(length) | {"position_ids": (torch.arange(length) % (length // 8))[None]}


def source_and_target(length: int) -> dict[str, Tensor]:
    return text(length) | {"decoder_input_ids": torch.randint(3, 32, (1, length))}


def boxes(length: int) -> Tensor:
    """Left, upper, right and lower edge of the words, on a page of 1,000 x 1,000."""
    corners = torch.randint(0, 500, (1, length, 2))
    return torch.cat((corners, corners + torch.randint(0, 500, (1, length, 2))), -1)


def document(length: int) -> dict[str, Tensor]:
    return text(length) | {"bbox": boxes(length)}


def embedded_document(length: int) -> dict[str, Tensor]:
    """The input of LayoutLMv2's encoder: nothing is hidden."""
    states, mask = torch.randn(1, length, 768), torch.zeros(1, 1, 1, length)
    places = torch.arange(length).unsqueeze(0)
    return {"hidden_states": states, "attention_mask": mask, "bbox": boxes(length), "position_ids": places}


def t5(layers: int) -> nn.Module:
    config = hf.T5Config(vocab_size=32, d_model=768, d_kv=64, d_ff=3072, num_layers=layers, num_heads=12)
    return hf.T5EncoderModel(config)


def switch(layers: int) -> nn.Module:
    """Switch-base-8: every second layer has experts."""
    config = hf.SwitchTransformersConfig(vocab_size=32, num_layers=layers, num_sparse_encoder_layers=layers // 2)
    return hf.SwitchTransformersEncoderModel(config)


def pix2struct(layers: int) -> nn.Module:
    """The initializer_range is the one that the text's configuration gets within that of the whole model."""
    config = hf.Pix2StructTextConfig(vocab_size=32, num_layers=layers, initializer_range=0.02)
    return hf.Pix2StructTextModel(config)


def longt5(layers: int) -> nn.Module:
    config = hf.LongT5Config(vocab_size=32, d_model=768, d_ff=2048, num_layers=layers, num_heads=12)
    return hf.LongT5EncoderModel(config)


def mpnet(layers: int) -> nn.Module:
    return hf.MPNetModel(hf.MPNetConfig(vocab_size=32, num_hidden_layers=layers, max_position_embeddings=8194))


def prophetnet(layers: int) -> nn.Module:
    """With its head, which reads the predicting streams."""
    config = hf.ProphetNetConfig(vocab_size=32, num_encoder_layers=layers, num_decoder_layers=layers, use_cache=False)
    return hf.ProphetNetForConditionalGeneration(config)


def deberta(layers: int) -> nn.Module:
    config = hf.DebertaConfig(
        vocab_size=32, num_hidden_layers=layers, relative_attention=True, pos_att_type=["c2p", "p2c"],
        max_relative_positions=-1, position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip
    return hf.DebertaModel(config)


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


def mpt(layers: int) -> nn.Module:
    return hf.MptModel(hf.MptConfig(vocab_size=32, n_layers=layers))


def gemma2(layers: int) -> nn.Module:
    return hf.Gemma2Model(hf.Gemma2Config(vocab_size=32, num_hidden_layers=layers, use_cache=False))


def kinds(layers: int) -> list[str]:
    """The last of Inkling's layers sees all tokens, the layers before it see a window."""
    return ["hybrid_sliding"] * (layers - 1) + ["hybrid"]


def inkling(layers: int) -> nn.Module:
    """The attention as published; narrow feed-forward layers, because the published experts take 58 GB per layer."""
    config = InklingTextConfig(
        vocab_size=32, unpadded_vocab_size=32, num_hidden_layers=layers, layer_types=kinds(layers),
        mlp_layer_types=["dense"] * layers, intermediate_size=1024, eos_token_id=2,
    )  # fmt: skip
    return InklingTextModel(config)


def inkling2(layers: int) -> nn.Module:
    """The attention as published; eight narrow experts, because the published ones take 49 GB per layer."""
    config = Inkling2TextConfig(
        vocab_size=32, unpadded_vocab_size=32, num_hidden_layers=layers, layer_types=kinds(layers),
        moe_intermediate_size=128, n_routed_experts=8, eos_token_id=2, use_cache=False,
    )  # fmt: skip
    return Inkling2TextModel(config)


def layoutlm_v2(layers: int) -> nn.Module:
    """Its encoder: the whole model needs detectron2."""
    return LayoutLMv2Encoder(hf.LayoutLMv2Config(num_hidden_layers=layers))


def layoutlm_v3(layers: int) -> nn.Module:
    config = hf.LayoutLMv3Config(
        vocab_size=32, num_hidden_layers=layers, max_position_embeddings=4098, visual_embed=False
    )
    return hf.LayoutLMv3Model(config)

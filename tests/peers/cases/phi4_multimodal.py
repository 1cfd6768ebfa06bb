"""Phi-4-Multimodal's speech encoder, of two features a frame."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import Phi4MultimodalAudioModel

from tests.peers.cases.case import BATCH, HEADS, WIDTH, Case, frames, whole

MELS = 8
SIZES = {"hidden_size": WIDTH, "intermediate_size": 24, "num_blocks": 2, "num_attention_heads": HEADS,
         "input_size": MELS, "time_reduction": 2, "nemo_conv_channels": 16, "ext_pw_out_channel": WIDTH,
         "depthwise_separable_out_channel": WIDTH, "left_chunk": 1}  # fmt: skip


def speech(length: int) -> dict[str, Tensor]:
    mask = frames(length)["attention_mask"].repeat_interleave(2, dim=1)
    return {"hidden_states": torch.randn(BATCH, 2 * length, MELS), "mask": mask}


def phi4(**changes: Any) -> Case:
    """In training NumPy draws its chunks: its dropout is tried in tests/hf/test_speech.py."""

    def make(_: int) -> nn.Module:
        return Phi4MultimodalAudioModel(hf.Phi4MultimodalAudioConfig(**SIZES, **changes))

    biases = {"k_proj.bias": "k_proj.weight"}
    return Case(make, speech, 4, whole, key_biases=biases, attentions=False, dropout=False, checkpoints=False)


CASES = {
    "phi4_multimodal_audio": phi4(bias_max_distance=5),
    "phi4_multimodal_audio_chunks": phi4(bias_max_distance=5, chunk_size=3),
    "phi4_multimodal_audio_symmetric": phi4(bias_max_distance=1000, bias_symmetric=True, chunk_size=3),
}

"""The models that `hugging_face.py` measures: published sizes, few layers, random weights.

A size that is not written in the files beside this one is the default of transformers' configuration for that model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from measure.studies import hugging_face_images as images
from measure.studies import hugging_face_speech as speech
from measure.studies import hugging_face_text as text


@dataclass(frozen=True)
class Subject:
    """A model of `layers` layers, an input of a length for it, the lengths that are measured, and their unit.

    forward: lengths at which only the forward pass is measured. warm: the length of a first call, which loads the
        libraries' pages.
    """

    shown: str
    make: Callable[[int], nn.Module]
    inputs: Callable[[int], dict[str, Any]]
    lengths: tuple[int, ...]
    unit: str = "tokens"
    forward: tuple[int, ...] = ()
    warm: int = 128


SIDE = "pixels per side"
HOUR = 45_000
"""Frames of 80 ms."""

SUBJECTS = {
    "t5": Subject("T5-base, encoder", text.t5, text.text, (512, 2048)),
    "switch": Subject("Switch-base-8, encoder", text.switch, text.text, (512, 2048)),
    "pix2struct": Subject("Pix2Struct-base, text", text.pix2struct, text.text, (512,)),
    "longt5": Subject("LongT5-base, encoder", text.longt5, text.text, (2048,)),
    "mpnet": Subject("MPNet-base", text.mpnet, text.text, (512, 8192)),
    "prophetnet": Subject("ProphetNet-large", text.prophetnet, text.source_and_target, (510,)),
    "deberta": Subject("DeBERTa-base", text.deberta, text.text, (512,)),
    "deberta_v2": Subject("DeBERTa-v3-base", text.deberta_v3, text.text, (512, 2048)),
    "xlnet": Subject("XLNet-base", text.xlnet, text.text, (2048,)),
    "funnel": Subject("Funnel, one block", text.funnel, text.text, (2048,)),
    "bloom": Subject("BLOOM-560m", text.bloom, text.text, (2048,)),
    "falcon": Subject("Falcon-RW-1B", text.falcon, text.text, (2048,)),
    "mpt": Subject("MPT-1B", text.mpt, text.text, (2048,)),
    "gemma2": Subject("Gemma 2 2B", text.gemma2, text.text, (1024, 4096)),
    "inkling": Subject("Inkling, narrow MLP", text.inkling, text.text, (512, 2048)),
    "inkling2": Subject("Inkling 2, narrow MLP", text.inkling2, text.text, (512, 2048)),
    "layoutlm_v2": Subject("LayoutLMv2-base, encoder", text.layoutlm_v2, text.embedded_document, (512,)),
    "layoutlm": Subject("LayoutLMv3-base", text.layoutlm_v3, text.document, (512, 4096)),
    "wav2vec2_bert": Subject(
        "Wav2Vec2-Bert, encoder", speech.wav2vec2_bert, speech.speech(1024), (1500,), "frames"
    ),
    "wav2vec2_conformer": Subject(
        "Wav2Vec2-Conformer-large, SeamlessM4T-large, speech encoder", speech.wav2vec2_conformer, speech.speech(1024),
        (1500,), "frames",
    ),
    "seamless_v2": Subject(
        "SeamlessM4T-v2-large, speech encoder", speech.seamless_v2, speech.speech(1024), (1500,), "frames"
    ),
    "wavlm": Subject("WavLM-base, encoder", speech.wavlm, speech.speech(768), (3000,), "frames (60 s)"),
    "speecht5": Subject("SpeechT5, encoder", speech.speecht5, speech.speech(768), (1500,), "frames"),
    "sew_d": Subject("SEW-D, encoder", speech.sew_d, speech.speech(768), (3000,), "frames"),
    "parakeet": Subject(
        "Parakeet 1.1B, encoder", speech.parakeet, speech.recording("input_features"), (4000,), "frames"
    ),
    "parakeet_frames": Subject(
        "Parakeet 1.1B, Cohere-ASR: encoder behind the subsampling", speech.parakeet_frames,
        speech.speech(1024, "input_features"), (), "frames (1 h)", forward=(HOUR,),
    ),
    "nemotron": Subject(
        "Nemotron-ASR-Streaming, encoder behind the subsampling", speech.nemotron,
        speech.speech(1024, "input_features"), (1500,), "frames",
    ),
    "granite": Subject(
        "Granite-Speech, encoder", speech.granite, speech.speech(160), (1500,), "frames (30 s)"
    ),
    "phi4": Subject(
        "Phi-4-Multimodal, speech encoder", speech.phi4, speech.unmasked_recording, (500,), "frames (40 s)"
    ),
    "fastspeech2": Subject(
        "FastSpeech2-Conformer, decoder", speech.fastspeech2, speech.speech(384, "input_tensor"), (1500,), "frames"
    ),
    "vits": Subject("VITS, text encoder", speech.vits, speech.phonemes, (512,), "phonemes"),
    "pop2piano": Subject(
        "Pop2Piano, encoder", speech.pop2piano, speech.speech(512, "inputs_embeds"), (512,), "frames"
    ),
    "clap": Subject(
        "CLAP, first stage of the audio encoder", speech.clap, speech.spectrogram, (1001,), "columns (10 s)", warm=1001
    ),
    "sam": Subject("SAM-B, SAM-HQ-B, GOT-OCR2: vision encoder", images.sam, images.image, (1024,), SIDE, warm=1024),
    "vitdet": Subject("ViTDet-B", images.vitdet, images.image, (1024,), SIDE, warm=1024),
    "seggpt": Subject("SegGPT-L, encoder", images.seggpt, images.image_and_prompt, (448,), SIDE, warm=448),
    "beit": Subject("BEiT-base at 384", images.beit, images.image, (384,), SIDE, warm=384),
    "data2vec": Subject("Data2Vec-vision-base at 224", images.data2vec, images.image, (224,), SIDE, warm=224),
    "swin": Subject("Swin-B at 224, first stage", images.swin, images.image, (224,), SIDE, warm=224),
    "donut": Subject("Donut at 1280 x 960, first stage", images.donut, images.page, (1280,), "pixels high", warm=1280),
    "maskformer": Subject("MaskFormer-Swin-B, first stage", images.maskformer, images.image, (800,), SIDE, warm=800),
    "swin_v2": Subject("Swin-v2-B, first stage", images.swin_v2, images.image, (256,), SIDE, warm=256),
    "levit": Subject("LeViT-128 at 224, two layers per stage", images.levit, images.image, (224,), SIDE, warm=224),
}  # fmt: skip
"""By a short name, the key of the committed figures.

Families without a line share the code of another family: mT5, UMT5 -> T5; Canary, Cohere-ASR, Nemotron-H-Omni ->
Parakeet; DeepSeek-OCR2, Unlimited-OCR, SLANeXt, PP-FormulaNet -> SAM; Swin2SR -> Swin-v2. LASR, SigLIP 2 and Gemma 4
have no relative term that is changed.
"""

BATCHES = {
    "t5-padded": Subject("T5-base, encoder, padded", text.t5, text.padded, (512,), "tokens x 4"),
    "gemma2-packed": Subject("Gemma 2 2B, 8 documents packed", text.gemma2, text.packed, (1024,)),
}
"""The same models with inputs that hide pairs."""

"""One file for each family of models: its modules on relattn, subclasses that keep every weight under its name.

A file is loaded when a model of its family is patched. So a transformers that lacks one family works for the others.
"""

from __future__ import annotations

import functools
import importlib

from torch import nn

from relattn.hf.replacement import Replacement

FILES = {
    "beit": "beit",
    "bloom": "alibi",
    "clap": "swin",
    "data2vec": "beit",
    "deberta": "deberta",
    "deberta_v2": "deberta",
    "deepseek_ocr2": "deepseek_ocr2",
    "donut": "swin",
    "falcon": "alibi",
    "fastspeech2_conformer": "fastspeech2_conformer",
    "funnel": "funnel",
    "gemma4": "gemma4",
    "gemma4_unified": "gemma4_unified",
    "got_ocr2": "decomposed",
    "granite_speech": "granite_speech",
    "granite_speech5": "granite_speech",
    "granite_speech_plus": "granite_speech",
    "inkling": "inkling",
    "inkling2": "inkling2",
    "inkling2_loop": "inkling2_loop",
    "lasr": "lasr",
    "layoutlmv2": "layout",
    "layoutlmv3": "layout",
    "levit": "levit",
    "longt5": "longt5",
    "maskformer": "swin",
    "mpnet": "mpnet",
    "mpt": "alibi",
    "mt5": "t5",
    "nemotron_asr_streaming": "nemotron_asr_streaming",
    "parakeet": "parakeet",
    "phi4_multimodal": "phi4_multimodal",
    "pix2struct": "t5_like",
    "pop2piano": "t5_like",
    "pp_formulanet": "pp_formulanet",
    "prophetnet": "prophetnet",
    "sam": "decomposed",
    "sam_hq": "decomposed",
    "seamless_m4t": "conformer",
    "seamless_m4t_v2": "conformer",
    "seggpt": "decomposed",
    "sew_d": "sew_d",
    "siglip2": "siglip2",
    "slanext": "slanext",
    "speecht5": "speecht5",
    "swin": "swin_itself",
    "swin2sr": "swin_v2",
    "swinv2": "swin_v2",
    "switch_transformers": "t5_like",
    "t5": "t5",
    "umt5": "t5",
    "unlimited_ocr": "unlimited_ocr",
    "vitdet": "decomposed",
    "vits": "vits",
    "wav2vec2_bert": "conformer",
    "wav2vec2_conformer": "conformer",
    "wavlm": "wavlm",
    "xlnet": "xlnet",
}
"""For each package in transformers.models: the file here with its replacements."""


SINCE: dict[str, str] = {
    **dict.fromkeys(("beit", "deepseek_ocr2", "gemma4", "gemma4_unified", "pp_formulanet", "swin"), "5.10"),
    **dict.fromkeys(("granite_speech", "granite_speech5", "granite_speech_plus", "inkling", "longt5", "mt5"), "5.18"),
    **dict.fromkeys(("nemotron_asr_streaming", "pix2struct", "pop2piano", "seamless_m4t", "seamless_m4t_v2"), "5.18"),
    **dict.fromkeys(("sew_d", "switch_transformers", "t5", "umt5", "wav2vec2_bert", "wav2vec2_conformer"), "5.18"),
    "wavlm": "5.18",
    "unlimited_ocr": "5.22",
    "inkling2": "5.23",
    "inkling2_loop": "5.24",
}
"""The families that older versions have not got, or have in another form: the first version that they were run with."""


def unwrapped(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of which torch has made a subclass, as FSDP2 and parametrizations do; any other class itself."""
    bases = (base for base in kind.__mro__ if issubclass(base, nn.Module) and not base.__module__.startswith("torch."))
    return next(bases, kind)


def package(kind: type[nn.Module]) -> str:
    """transformers.models.PACKAGE.modeling_...: the package that defines a class; "" for a class from elsewhere."""
    parts = unwrapped(kind).__module__.split(".")
    return parts[2] if parts[:2] == ["transformers", "models"] and len(parts) > 2 else ""


def replacement_of(kind: type[nn.Module]) -> type[Replacement] | None:
    """The replacement of a module's class; None where there is none.

    Raises ImportError: when this version of transformers lacks a class that the family's file replaces.
    """
    file = FILES.get(package(kind))
    return None if file is None else replacements(file).get(kind)


@functools.cache
def replacements(file: str) -> dict[type[nn.Module], type[Replacement]]:
    """The transformers modules that a file replaces, and their replacements."""
    return importlib.import_module(f"relattn.hf.models.{file}").REPLACEMENTS

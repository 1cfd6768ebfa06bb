"""The practical tool on top of the library: train, compare and compose (extra `lab`)."""

from importlib.util import find_spec

from relattn.errors import not_installed

NEEDED = (
    "transformers", "accelerate", "filelock", "huggingface_hub", "music21", "mido", "matplotlib", "safetensors",
    "tomli_w",
)  # fmt: skip
for _package in NEEDED:
    if find_spec(_package) is None:
        raise not_installed(_package, "lab")

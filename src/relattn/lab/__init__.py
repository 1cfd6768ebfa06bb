"""The practical tool on top of the library: train, compare and compose (extra `lab`)."""

from importlib.util import find_spec

from relattn.errors import not_installed

for _package in ("transformers", "accelerate", "filelock", "music21", "mido", "matplotlib", "safetensors"):
    if find_spec(_package) is None:
        raise not_installed(_package, "lab")

"""Files of tensors by name: safetensors in and out, PyTorch's own in, whose pickles are never run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from relattn.cli.files import atomic_path, check_name, reason_of

SAFETENSORS = ".safetensors"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
INSIDE = ("state_dict", "model", "model_state_dict")
"""Keys under which a training checkpoint holds its tensors."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .bin, .pt, .pth or .ckpt file, on the CPU.

    Raises FileNotFoundError: for a file that is not there; ValueError: for one that is damaged, or holds anything but
    tensors by name.
    """
    if not path.is_file():
        raise FileNotFoundError(f"in: got {path}, which is no file; expected a checkpoint")
    if path.suffix == SAFETENSORS:
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(
                f"in: got {path}, which is damaged, or no safetensors file ({error}); expected one that is whole"
            ) from None
    if path.suffix not in PICKLED:
        raise ValueError(f"in: got {path}; expected a file that ends in {', '.join((SAFETENSORS, *PICKLED))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about damaged files: the error below says it
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged pickle can make anything of itself
        raise ValueError(
            f"in: got {path}, which is damaged, or holds more than tensors and plain values, for which code "
            "would have to be run; expected tensors by name; where you trust it, load it and save its state_dict() "
            "alone"
        ) from None
    return _tensors_of(path, loaded)


def _tensors_of(path: Path, loaded: Any) -> dict[str, Tensor]:
    """What was loaded, or what it holds under one of INSIDE."""
    candidates = [loaded]
    if isinstance(loaded, Mapping):
        candidates += [loaded[name] for name in INSIDE if name in loaded]
    for one in candidates:
        if isinstance(one, Mapping) and one and all(isinstance(tensor, Tensor) for tensor in one.values()):
            return {str(name): tensor for name, tensor in one.items()}
    came = type(loaded).__name__
    if isinstance(loaded, Mapping):
        came += f" with {', '.join(map(str, list(loaded)[:5])) or 'nothing in it'}"
    raise ValueError(
        f"in: got {path}, which holds {came}; expected tensors by name, at the top or under {' or '.join(INSIDE)}"
    )


def check_new(path: Path) -> None:
    """`path` is a name for a new safetensors file.

    Raises ValueError: for another name; FileExistsError: when it is there; FileNotFoundError: when its folder is not.
    """
    check_name("out", path)
    if path.suffix != SAFETENSORS:
        raise ValueError(f"out: got {path}; expected a name that ends in {SAFETENSORS}")
    if path.exists():
        raise FileExistsError(
            f"out: got {path}, which is there already; expected a new file; give another name, or remove it"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"out: got {path}, whose folder is not there; expected a name in a folder; make the folder first"
        )


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file that is whole or not there. Tensors that share memory are written separately.

    Raises OSError: when it cannot be written.
    """
    with atomic_path(path) as draft:
        try:
            save_file(_apart(tensors), draft, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(
                f"out: {path} cannot be written: got {reason_of(error)!r}; expected free space and write permission; "
                "free some space, or choose another folder"
            ) from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, contiguous, none in another's memory."""
    taken: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage()
        alone = memory.data_ptr() not in taken and memory.nbytes() == tensor.nbytes and tensor.is_contiguous()
        taken.add(memory.data_ptr())
        apart[name] = tensor if alone else tensor.clone(memory_format=torch.contiguous_format)
    return apart

"""The small models of every family that `patch` changes, wrapped: adapted, offloaded, quantized, sharded."""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

import relattn.hf
from tests.peers.cases import CASES
from tests.peers.cases.case import LENGTH

SETTING = re.compile(
    r"_(6_heads|one_key_head|new|shared|both|both_padded|of_\w+|without_\w+|rotary|chunks|convolution|p2c|c2p|eager"
    r"|concatenated|factorized|\w*pools_keys|one_block|three_projections|more_buckets|symmetric|3_streams|squeezed"
    r"|unclipped|pretrained|stable_layer_norm|clamped|uni)$"
)
"""The ends of the names of cases that differ from another in a setting alone."""

FAMILIES = [name for name in CASES if SETTING.search(name) is None]
"""A case of every class that is replaced."""

Wrapper = Callable[[nn.Module], nn.Module]

READ_BY_THE_ORIGINAL = ("q_proj", "k_proj", "v_proj", "out_proj")
"""WavLM's projections: transformers hands their weights to torch's function, so that no wrapper of them is called."""

OF_A_DTYPE = ("wo", "input_linear", "patch_embedding", "down_proj")
"""Projections of T5, Granite-Speech 5, SigLIP 2 and Inkling 2 Loop: transformers reads the dtype of their weight, and
takes it for their input.
"""


def named(model: nn.Module, *kinds: type[nn.Module], but: tuple[str, ...] = ()) -> list[str]:
    """The modules of these very classes, apart from those whose own name is among `but`."""
    return [
        name
        for name, module in model.named_modules()
        if type(module) in kinds and not any(name.rpartition(".")[2] == one for one in but)
    ]


def in_both_orders(model: nn.Module, wrap: Wrapper) -> Iterator[nn.Module]:
    """The model patched and then wrapped, and wrapped and then patched."""
    relattn.hf.patch(first := copy.deepcopy(model))
    yield wrap(first)
    relattn.hf.patch(second := wrap(copy.deepcopy(model)))
    yield second


def answer(name: str, model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """What is compared of the model's output."""
    return CASES[name].output(model(**{key: x.clone() for key, x in inputs.items()}), inputs)


def inputs_of(name: str) -> dict[str, Tensor]:
    """Short inputs of its case."""
    return CASES[name].inputs(LENGTH)

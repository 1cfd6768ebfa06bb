"""Case: a small model with random weights, how to call it, and what is compared; with the sizes that all share."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

BATCH, LENGTH, TARGET, VOCABULARY, WIDTH, HEADS = 2, 11, 7, 40, 16, 4

TEXT = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}


@dataclass(frozen=True)
class Case:
    """A model and how to call it.

    make(length), inputs(length): the model for inputs of up to so many tokens, and such inputs, BATCH of them; images
    have a grid of about so many patches. replaced: how many modules `patch` replaces. output: the tensor that is
    compared. features: the inputs that gradients are taken by. unused: parts of the names of parameters that the output
    does not depend on. key_biases: the ends of the names of parameters whose gradients cancel (a vector added to every
    key), each with the end of the weight's name beside it. attentions: whether its modules return the weights when
    output_attentions asks for them. generates: by `generate`, from a prompt. dropout: whether its attention has one.
    checkpoints: whether transformers can checkpoint its layers. residuals: whether a token attends to its own states in
    the layers below, too: without positions and dropout.
    """

    make: Callable[[int], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    replaced: int
    output: Callable[[Any, dict[str, Tensor]], Tensor]
    features: tuple[str, ...] = ("hidden_states",)
    unused: tuple[str, ...] = ()
    key_biases: dict[str, str] = field(default_factory=dict)
    attentions: bool = True
    generates: bool = False
    dropout: bool = True
    checkpoints: bool = True
    residuals: bool = False


def theirs(family: str, *names: str) -> list[Any]:
    """Classes of a family by their names; asked for when a model is made, for older versions have not got all families.

    Raises ModuleNotFoundError: where the installed transformers lacks the family.
    """
    files = [importlib.import_module(f"transformers.models.{family}.{part}_{family}") for part in PARTS]
    return [next(getattr(file, name) for file in files if hasattr(file, name)) for name in names]


PARTS = "configuration", "modeling"


def padding(length: int) -> Tensor:
    """The first row ends early, the second begins late."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[0, length - 3 :] = 0
    mask[1, :2] = 0
    return mask


def tokens(length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, length)), "attention_mask": padding(length)}


def pairs_of_texts(length: int) -> dict[str, Tensor]:
    target = TARGET if length == LENGTH else length - 1
    return {**tokens(length), "decoder_input_ids": torch.randint(3, VOCABULARY, (BATCH, target))}


def frames(length: int) -> dict[str, Tensor]:
    """A speech encoder's input; speech is padded at the end."""
    mask = torch.ones(BATCH, length, dtype=torch.bool)
    mask[0, length - 3 :] = False
    return {"hidden_states": torch.randn(BATCH, length, WIDTH), "attention_mask": mask}


def at_tokens(output: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The last hidden state (a list of all tokens, padding left out, which nobody reads)."""
    states = output if isinstance(output, Tensor) else output[0]
    return states[inputs["attention_mask"].bool()]


def whole(output: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The first output, all of it: a decoder's, or an image's, which have no padding."""
    return output if isinstance(output, Tensor) else output[0]


def drawn(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, its parameters drawn anew: all of them matter, and scores are of size one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.0 if "emb" in name else parameter.shape[-1] ** -0.5)
            else:
                parameter.normal_(mean=float(name.endswith("weight")), std=0.2)
    return model.eval()

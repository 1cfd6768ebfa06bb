"""Copies of a module, by deepcopy, pickle, torch.save and state_dict: the same numbers to the bit, and independent."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.contract.calls import MODULES
from tests.ecosystem.layers import Attention, attention, every_encoding, inputs

pytest_plugins = ["tests.contract.fresh"]


def saved(thing: Any, *, weights_only: bool) -> Any:
    """`thing` through torch.save and torch.load."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


COPIES: dict[str, Callable[[Attention], Attention]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": lambda module: saved(module, weights_only=False),
}


def assert_same(ours: Attention, expected: Attention) -> None:
    for lengths in ((11, 11), (5, 9)):
        given = inputs(*lengths)
        assert torch.equal(ours(*given), expected(*given))


def assert_copied(way: str, module: Attention) -> None:
    """The copy gives the same numbers, and its weights are its own."""
    copied = COPIES[way](module)
    assert_same(copied, module)
    given = inputs(7, 7)
    before = module(*given)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1.0)
    assert torch.equal(module(*given), before)
    assert not torch.equal(copied(*given), before)


def assert_saved(module: Attention, other: Attention) -> None:
    """Weights through a file, into a module of other weights, and onto one made without any, on the meta device."""
    weights, empty = saved(module.state_dict(), weights_only=True), copy.deepcopy(other).to("meta")
    assert other.load_state_dict(weights) == ([], [])
    assert_same(other, module)
    empty.load_state_dict(weights, assign=True)
    assert_same(empty, module)


@pytest.mark.one_in(9)
@every_encoding
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_gives_the_same_numbers_and_is_its_own(name: str, way: str, rng: np.random.Generator) -> None:
    assert_copied(way, attention(name, rng, "auto"))


@pytest.mark.parametrize("way", COPIES)
def test_an_encoding_that_two_layers_share_stays_shared(way: str, rng: np.random.Generator) -> None:
    first, second = attention("t5", rng), attention("t5", rng)
    second.layer.encoding = first.layer.encoding
    both = COPIES[way](nn.ModuleList([first, second]))
    assert both[0].layer.encoding is both[1].layer.encoding is not first.layer.encoding


@pytest.mark.one_in(9)
@every_encoding
def test_weights_through_a_file(name: str, rng: np.random.Generator) -> None:
    assert_saved(attention(name, rng), attention(name, rng))


NAMES = {
    "relative": ["relative_keys"],
    "shaw": ["relative_keys", "relative_values"],
    "shaw_keys_only": ["relative_keys"],
    "txl": ["pos_bias_u", "pos_bias_v", "linear_pos.weight"],
    "txl_learned": ["pos_bias_u", "pos_bias_v", "relative_keys"],
    "t5": ["bias"],
    "alibi_4_heads": [],
    "alibi_given": [],
    "alibi_learned": ["slopes"],
    "kerple": ["r1", "r2"],
    "sandwich": [],
    "function": ["function.first.weight", "function.first.bias", "function.last.weight", "function.last.bias"],
    "rope": [],
    "t5+alibi": ["operands.0.bias"],
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_weights(name: str, rng: np.random.Generator) -> None:
    """What saved files hold; no buffer is among it, and nothing that could be computed."""
    projections = [f"{which}_proj.{kind}" for which in "qkv" for kind in ("weight", "bias")]
    expected = [*projections, "out_proj.weight", "out_proj.bias", *(f"encoding.{own}" for own in NAMES[name])]
    assert list(attention(name, rng).layer.state_dict()) == expected


@pytest.mark.parametrize(
    "name", [name for name in MODULES if name.startswith(("shaw", "t5", "txl", "kerple", "function"))]
)
def test_weights_that_do_not_fit_are_refused(name: str, rng: np.random.Generator) -> None:
    module, weights = attention(name, rng), attention(name, rng).state_dict()
    missing = next(key for key in weights if "encoding" in key)
    del weights[missing]
    with pytest.raises(RuntimeError, match=f"Missing key.*{missing}"):
        module.load_state_dict(weights)

"""Funnel at every length and setting, its weights, and what it refuses."""

import copy
from itertools import product
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import relattn.hf
from relattn import UnsupportedError
from tests.bad_input.refusal import refused
from tests.hf.twins import FLOAT32, assert_same, twins
from tests.peers.cases.case import BATCH, VOCABULARY, drawn
from tests.peers.cases.funnel import FUNNEL
from tests.peers.compare import everything_in_float64

SETTINGS = [
    {"attention_type": kind, "separate_cls": separate, "truncate_seq": truncate, "pool_q_only": queries}
    for kind, (separate, truncate), queries in product(
        ("relative_shift", "factorized"), ((True, True), (True, False), (False, False)), (True, False)
    )
]
LENGTHS = (9, 10, 11, 13, 16, 21)


def funnel(kind: type = hf.FunnelModel, **changes: Any) -> Any:
    return kind(hf.FunnelConfig(**{**FUNNEL, "block_sizes": [1, 1, 2], **changes}))


def text(length: int) -> dict[str, Tensor]:
    """The first row ends early; the class token is in the segment 2, and one more in the midst of the text."""
    mask = torch.ones(BATCH, length)
    mask[0, length - 3 :] = 0
    kinds = torch.randint(0, 2, (BATCH, length))
    kinds[:, [0, length // 2]] = 2
    tokens = torch.randint(3, VOCABULARY, (BATCH, length))
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": kinds}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_settings(settings: dict[str, Any]) -> None:
    """Pooled twice, at lengths that no pooling divides, padding and all."""
    pair = twins(funnel(**settings))
    for length in LENGTHS:
        inputs = text(length)
        assert_same(pair, lambda model, inputs=inputs: model(**inputs)[0])


@pytest.mark.one_in(9)
@pytest.mark.parametrize("length", range(1, 9))
def test_short_texts(length: int) -> None:
    """What is too short is not pooled.

    transformers 5.23 fails on short texts with "relative_shift", whose formula is that of "factorized".
    """
    inputs = {**text(length), "attention_mask": torch.ones(BATCH, length)}
    pair = twins(funnel(attention_type="factorized"))
    assert_same(pair, lambda model: model(**inputs)[0])
    model, shifted = pair[0], copy.deepcopy(pair[0])
    for module in shifted.modules():
        if hasattr(module, "config"):
            module.config.attention_type = "relative_shift"
    if length < 5:
        with pytest.raises(RuntimeError), everything_in_float64():
            shifted(**inputs)
    relattn.hf.patch(shifted)
    assert_same((model, shifted), lambda model: model(**inputs)[0])


@pytest.mark.parametrize("kind", ["relative_shift", "factorized"])
def test_layers_that_repeat(kind: str) -> None:
    inputs = text(11)
    model = funnel(attention_type=kind, block_repeats=[1, 2, 2], pooling_type="max")
    assert_same(twins(model), lambda model: model(**inputs)[0])


def test_the_base_model_with_nothing_but_tokens() -> None:
    tokens = text(12)["input_ids"]
    assert_same(twins(funnel(hf.FunnelBaseModel)), lambda model: model(tokens)[0])


@pytest.mark.parametrize("queries", [False, True])
def test_weights(queries: bool) -> None:
    """[B, H, Lq, Lk] of every layer, as the original returns them."""
    inputs, model = text(11), drawn(funnel(pool_q_only=queries))
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True)
        relattn.hf.patch(model)
        found = model(**inputs, output_attentions=True)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, **FLOAT32)
    assert len(found.attentions) == len(expected.attentions) == 5
    for ours, theirs in zip(found.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(ours, theirs, **FLOAT32)


def test_segments_that_are_not_known() -> None:
    model, inputs = funnel(), text(9)
    relattn.hf.patch(model)
    inputs["token_type_ids"][1, 3] = 3
    with refused(
        UnsupportedError,
        "token_type_ids: got others than 0, 1 and 2, the segments of Funnel's tokenizers; call relattn.hf.unpatch",
    ):
        model(**inputs)


def test_a_layer_alone() -> None:
    """What the structure hands on is understood by no other layer."""
    with refused(
        UnsupportedError,
        "model: relattn can change no attention of FunnelLayer (FunnelRelMultiheadAttention shares its bias with the "
        "other layers of a FunnelPreTrainedModel; patch that, or the model); it is as it was",
    ):
        relattn.hf.patch(funnel().encoder.blocks[0][0])

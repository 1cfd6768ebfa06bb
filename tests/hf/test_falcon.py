"""Falcon's ALiBi: a number for each key, which its model adds to a mask of pairs, and which ours hands on as it is."""

import copy
from typing import Any

import pytest
import torch
import transformers as hf

import relattn.hf
from relattn import UnsupportedError
from relattn.hf import interface
from tests import seeds
from tests.bad_input.refusal import refused
from tests.peers.cases import CASES, made
from tests.peers.cases.case import HEADS, LENGTH, TEXT

ALIBI = ["falcon_alibi", "falcon_alibi_one_key_head", "falcon_alibi_new"]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "greedy, no cache": {"do_sample": False, "use_cache": False},
    "sampling": {"do_sample": True, "top_k": 5},
    "beams": {"do_sample": False, "num_beams": 3},
}
STATIC = {"do_sample": False, "cache_implementation": "static", "disable_compile": True}


def generated(model: Any, **how: Any) -> torch.Tensor:
    prompt = CASES["falcon"].inputs(LENGTH)
    prompt["attention_mask"][0] = 1
    seeds.start_torch(3)
    return model.generate(**prompt, max_new_tokens=6, **how)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ALIBI)
def test_generation(name: str, how: str) -> None:
    model = made(name)
    twin = copy.deepcopy(model)
    relattn.hf.patch(twin)
    seeds.start_torch(0)
    theirs = generated(model, **HOW[how])
    seeds.start_torch(0)
    assert torch.equal(generated(twin, **HOW[how]), theirs)


def test_a_static_cache() -> None:
    """The original makes its numbers of the mask that `generate` made ahead, and fails; ours of what the mask says."""
    model = made("falcon_alibi")
    seeds.start_torch(0)
    expected = generated(model, **HOW["greedy"])
    seeds.start_torch(0)
    with pytest.raises(ValueError):
        generated(copy.deepcopy(model), **STATIC)  # which would keep a cache that was not filled
    relattn.hf.patch(model)
    seeds.start_torch(0)
    assert torch.equal(generated(model, **STATIC), expected)


@pytest.mark.parametrize("name", ALIBI)
def test_a_mask_of_pairs(name: str) -> None:
    """Nobody knows from it which tokens are real; the original fails."""
    model, tokens = made(name), torch.randint(3, 40, (1, 5))
    pairs = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    with pytest.raises(ValueError):
        model(tokens, attention_mask=pairs)
    relattn.hf.patch(model)
    with refused(
        UnsupportedError,
        "attention_mask: got shape [1, 1, 5, 5]; expected a mask of tokens, [batch, keys], for Falcon's ALiBi counts "
        "the real ones",
    ):
        model(tokens, attention_mask=pairs)


@pytest.mark.parametrize("name", ["falcon", *ALIBI])
def test_a_layer_alone(name: str) -> None:
    """Its model adds the numbers to the mask that this layer gets, too."""
    case, model = CASES[name], made(name)
    inputs = case.inputs(LENGTH)
    with torch.no_grad():
        expected = case.output(model(**inputs), inputs)
        assert list(relattn.hf.patch(model.transformer.h[1]).changed) == ["self_attention"]
        found = case.output(model(**inputs), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.since("5.18", r"\[tensor")
def test_what_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number for each key, no mask of pairs. Older versions ask for one of any Falcon."""
    model, calls = made("falcon_alibi"), []
    run = interface.relative_attention
    monkeypatch.setattr(interface, "relative_attention", lambda *a, **k: calls.append(k) or run(*a, **k))
    relattn.hf.patch(model)
    with torch.no_grad():
        model(**CASES["falcon_alibi"].inputs(LENGTH))
    assert [call["key_bias"].shape for call in calls] == [(2, HEADS, LENGTH)] * 2
    assert [call["encoding"] for call in calls] == [None] * 2
    assert [call["attn_mask"] for call in calls] == [None] * 2


@pytest.mark.parametrize("name", ALIBI)
def test_weights_give_the_output(name: str) -> None:
    """In the original, output_attentions=True changes the output: its eager formula adds the numbers twice."""
    model, inputs = made(name), CASES[name].inputs(LENGTH)
    with torch.no_grad():
        expected, twice = model(**inputs)[0], model(**inputs, output_attentions=True)[0]
        relattn.hf.patch(model)
        found = model(**inputs, output_attentions=True)
    kept = inputs["attention_mask"].bool()
    assert (twice - expected)[kept].abs().max() > 0.01
    torch.testing.assert_close(found[0][kept], expected[kept], rtol=1e-4, atol=1e-5)
    sums = torch.ones(2, HEADS, LENGTH)
    assert all(torch.allclose(one.sum(-1).transpose(1, 2)[kept], sums.transpose(1, 2)[kept]) for one in found[-1])


def test_numbers_that_are_added_twice() -> None:
    model = hf.FalconModel._from_config(hf.FalconConfig(**TEXT, alibi=True), attn_implementation="eager")
    with refused(
        UnsupportedError,
        "model: h.0.self_attention cannot be changed (attn_implementation='eager' adds Falcon's ALiBi twice; load the "
        "model with 'sdpa') and takes its masks from where others take theirs; nothing was changed",
    ):
        relattn.hf.patch(model)


def test_unpatch_brings_its_own_alibi_back() -> None:
    model, inputs = made("falcon_alibi"), CASES["falcon_alibi"].inputs(LENGTH)
    with torch.no_grad():
        expected = model(**inputs)[0]
        relattn.hf.patch(model)
        relattn.hf.unpatch(model)
        torch.testing.assert_close(model(**inputs)[0], expected, rtol=0, atol=0)

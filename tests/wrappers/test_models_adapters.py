"""Patched models with adapters: one LoRA per embedding and per projection, applied and trained as the original's."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import relattn.hf
from tests.hf.twins import FLOAT32, assert_same
from tests.peers.cases import CASES, made
from tests.wrappers.models import READ_BY_THE_ORIGINAL, answer, in_both_orders, inputs_of, named

pytestmark = pytest.mark.wrappers
every_model = pytest.mark.parametrize("name", CASES)


def low_rank(model: nn.Module, *but: str) -> LoraConfig:
    return LoraConfig(r=2, target_modules=named(model, nn.Linear, nn.Embedding, but=but), init_lora_weights=False)


def kept_by(name: str) -> tuple[str, ...]:
    return READ_BY_THE_ORIGINAL if name.startswith("wavlm") else ()


@every_model
def test_adapters(name: str) -> None:
    base, inputs = made(name).double(), inputs_of(name)
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    config = low_rank(base, *kept_by(name))
    inject_adapter_in_model(config, original := copy.deepcopy(base))
    adapters = original.state_dict()

    def wrapped(model: nn.Module) -> nn.Module:
        inject_adapter_in_model(config, model)
        model.load_state_dict(adapters)
        return model

    for twin in in_both_orders(base, wrapped):
        for model in (original, twin):
            for parameter, held in model.named_parameters():
                held.requires_grad_("lora_" in parameter)
        assert_same((original, twin), lambda model: answer(name, model, inputs))


def test_adapters_of_wavlm_s_projections() -> None:
    """The original hands their base weights to torch's function: it gives no gradients. The replacement calls them."""
    plain, inputs = made("wavlm"), inputs_of("wavlm")
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    inject_adapter_in_model(config, original := copy.deepcopy(plain))
    relattn.hf.patch(twin := copy.deepcopy(original))
    found, expected = (answer("wavlm", model, inputs) for model in (original, plain))
    torch.testing.assert_close(found, expected, **FLOAT32)
    answered = answer("wavlm", twin, inputs)
    assert (answered - expected).abs().max() > 0.1 * expected.abs().max()
    answered.square().sum().backward()
    assert all(parameter.grad.any() for key, parameter in twin.named_parameters() if "lora_" in key)


@every_model
def test_saved_loaded_and_merged(name: str, tmp_path: Path) -> None:
    """The original's keys and numbers: of the adapters, of the model with them, and of the merged model."""
    base: Any = made(name)
    config = low_rank(base)
    original = get_peft_model(copy.deepcopy(base), config)
    patched = copy.deepcopy(base)
    relattn.hf.patch(patched)
    twin = get_peft_model(patched, config)
    twin.load_state_dict(original.state_dict())
    twin.save_pretrained(tmp_path / "patched")
    original.save_pretrained(tmp_path / "original")
    relattn.hf.patch(fresh := copy.deepcopy(base))
    for model, folder in ((copy.deepcopy(base), "patched"), (fresh, "original")):
        loaded = PeftModel.from_pretrained(model, tmp_path / folder)
        assert_equal_states(loaded, original)
    merged, expected = (model.merge_and_unload() for model in (twin, original))
    assert_equal_states(merged, expected)
    if isinstance(base, PreTrainedModel):
        merged.save_pretrained(tmp_path / "merged")
        assert_equal_states(type(base).from_pretrained(tmp_path / "merged"), expected)


def assert_equal_states(one: nn.Module, other: nn.Module) -> None:
    (ours, theirs) = (model.state_dict() for model in (one, other))
    assert list(ours) == list(theirs)
    for key, expected in theirs.items():
        torch.testing.assert_close(ours[key], expected, rtol=0, atol=0, msg=key)


def test_a_table_that_is_trained_whole() -> None:
    """modules_to_save: a copy of the embedding in place of an adapter."""
    config = LoraConfig(r=2, target_modules=["q"], modules_to_save=["relative_attention_bias"])
    original = get_peft_model(made("t5").double(), config)
    with torch.no_grad():
        for key, parameter in original.named_parameters():
            if "modules_to_save" in key:
                parameter.normal_()
    relattn.hf.patch(twin := copy.deepcopy(original))
    inputs: dict[str, Tensor] = inputs_of("t5")
    assert_same((original, twin), lambda model: answer("t5", model, inputs))

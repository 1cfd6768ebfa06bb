"""Patched models with adapters: one LoRA per embedding and per projection, applied and trained as the original's."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

import relattn.hf
from tests.hf.twins import FLOAT32, assert_same
from tests.peers.cases import made
from tests.wrappers.models import FAMILIES, READ_BY_THE_ORIGINAL, answer, in_both_orders, inputs_of, named

pytestmark = pytest.mark.wrappers
every_model = pytest.mark.parametrize("name", FAMILIES)


def low_rank(*names: str, **settings: Any) -> Any:
    """peft's configuration of adapters that change something from the start."""
    from peft import LoraConfig

    return LoraConfig(r=2, target_modules=list(names), init_lora_weights=False, **settings)


@every_model
def test_adapters(name: str) -> None:
    from peft import inject_adapter_in_model

    base, inputs = made(name).double(), inputs_of(name)
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    config = low_rank(*named(base, nn.Linear, nn.Embedding, but=READ_BY_THE_ORIGINAL if "wavlm" in name else ()))
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
    from peft import inject_adapter_in_model

    plain, inputs = made("wavlm"), inputs_of("wavlm")
    config = low_rank("q_proj", "v_proj")
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
    from peft import PeftModel, get_peft_model

    base: Any = made(name)
    config = low_rank(*named(base, nn.Linear, nn.Embedding, but=("weight_proj",)))  # peft loses Inkling 2's in its file
    original = get_peft_model(copy.deepcopy(base), config)
    relattn.hf.patch(patched := copy.deepcopy(base))
    twin = get_peft_model(patched, config)
    twin.load_state_dict(original.state_dict())
    for model, folder in ((original, "original"), (twin, "patched")):
        model.save_pretrained(tmp_path / folder)
    assert_equal_files(tmp_path / "patched", tmp_path / "original")
    relattn.hf.patch(loaded := copy.deepcopy(base))
    assert_equal(PeftModel.from_pretrained(loaded, tmp_path / "original").state_dict(), original.state_dict())
    merged = twin.merge_and_unload(), original.merge_and_unload()
    assert_equal(*(model.state_dict() for model in merged))
    if isinstance(base, PreTrainedModel):
        for model, folder in zip(merged, ("merged", "expected"), strict=True):
            model.save_pretrained(tmp_path / folder)
        assert_equal_files(tmp_path / "merged", tmp_path / "expected")


def assert_equal_files(ours: Path, theirs: Path) -> None:
    """The same files, with the same configuration and tensors in them."""
    names = sorted(path.name for path in theirs.iterdir())
    assert sorted(path.name for path in ours.iterdir()) == names
    for name in names:
        if name.endswith(".safetensors"):
            assert_equal(load_file(ours / name), load_file(theirs / name))
        elif name == "config.json":
            assert (ours / name).read_text() == (theirs / name).read_text()


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert list(ours) == list(theirs)
    for key, expected in theirs.items():
        torch.testing.assert_close(ours[key], expected, rtol=0, atol=0, msg=key)


def test_a_table_that_is_trained_whole() -> None:
    """modules_to_save: a copy of the embedding in place of an adapter."""
    from peft import get_peft_model

    original = get_peft_model(made("t5").double(), low_rank("q", modules_to_save=["relative_attention_bias"]))
    with torch.no_grad():
        for key, parameter in original.named_parameters():
            if "modules_to_save" in key:
                parameter.normal_()
    relattn.hf.patch(twin := copy.deepcopy(original))
    inputs: dict[str, Tensor] = inputs_of("t5")
    assert_same((original, twin), lambda model: answer("t5", model, inputs))

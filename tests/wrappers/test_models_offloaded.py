"""Patched models whose weights accelerate keeps elsewhere until a module is called, in both orders."""

from pathlib import Path

import accelerate
import pytest
import torch
from accelerate.hooks import remove_hook_from_submodules
from torch import nn

import relattn.hf
from relattn import UnsupportedError
from tests.bad_input.refusal import refused
from tests.hf.twins import FLOAT32
from tests.peers.cases import made
from tests.wrappers.models import FAMILIES, Wrapper, answer, in_both_orders, inputs_of

pytestmark = pytest.mark.wrappers

CPU = torch.device("cpu")
READS_ITS_ROWS = ("deberta", "sew_d", "prophetnet", "siglip2")
"""transformers itself reads the rows of an embedding here, outside of what is replaced: the originals fail, too."""
TABLES = ("t5", "wavlm", "wav2vec2_bert", "inkling", "swin", "beit")
"""Tables in an embedding, in a module that is asked for them, and in the module that attends."""


def offloaded(model: nn.Module) -> nn.Module:
    return accelerate.cpu_offload(model, execution_device=CPU)


def in_hooks(way: str, folder: Path) -> Wrapper:
    """On disk, or one half on disk and the other in memory."""

    def wrap(model: nn.Module) -> nn.Module:
        if way == "disk_offload":
            return accelerate.disk_offload(model, str(folder / str(len(list(folder.iterdir())))), execution_device=CPU)
        children = [name for name, _ in model.named_children()]
        where = {name: "disk" if number % 2 else "cpu" for number, name in enumerate(children)}
        return accelerate.dispatch_model(model, where, main_device="cpu", offload_dir=str(folder), force_hooks=True)

    return wrap


@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith(READS_ITS_ROWS)])
@torch.no_grad()
def test_cpu_offload(name: str) -> None:
    model, inputs = made(name), inputs_of(name)
    expected = answer(name, model, inputs)
    for twin in in_both_orders(model, offloaded):
        assert all(parameter.is_meta for parameter in twin.parameters())
        torch.testing.assert_close(answer(name, twin, inputs), expected, **FLOAT32)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("way", ["disk_offload", "dispatch_model"])
@torch.no_grad()
def test_on_disk(name: str, way: str, tmp_path: Path) -> None:
    model, inputs = made(name), inputs_of(name)
    expected = answer(name, model, inputs)
    for twin in in_both_orders(model, in_hooks(way, tmp_path)):
        torch.testing.assert_close(answer(name, twin, inputs), expected, **FLOAT32)


@pytest.mark.parametrize("name", TABLES)
@torch.no_grad()
def test_unpatched_in_hooks_and_after_them(name: str) -> None:
    """The original's forward is called again."""
    model, inputs = made(name), inputs_of(name)
    expected = answer(name, model, inputs)
    relattn.hf.patch(model)
    offloaded(model)
    relattn.hf.unpatch(model)
    kept = [(module, held) for module in model.modules() if (held := vars(module).get("_old_forward"))]
    assert kept and all(held.__func__ is type(module).forward for module, held in kept)
    relattn.hf.patch(model)
    remove_hook_from_submodules(model)
    torch.testing.assert_close(answer(name, model, inputs), expected, **FLOAT32)
    relattn.hf.unpatch(model)
    torch.testing.assert_close(answer(name, model, inputs), expected, rtol=0, atol=0)


@torch.no_grad()
def test_patched_after_hooks() -> None:
    """accelerate leaves the forward of the class in each object."""
    model, inputs = made("wavlm"), inputs_of("wavlm")
    expected = answer("wavlm", model, inputs)
    remove_hook_from_submodules(offloaded(model))
    attention = model.layers[0].attention
    assert "forward" in vars(attention)
    relattn.hf.patch(model)
    assert attention.forward.__func__ is type(attention).forward
    torch.testing.assert_close(answer("wavlm", model, inputs), expected, **FLOAT32)


def test_another_hook() -> None:
    """It may call anything."""
    model = made("umt5")
    attention = next(module for module in model.modules() if type(module).__name__ == "UMT5Attention")
    attention.forward = attention._old_forward = lambda *args, **kwargs: None
    with refused(UnsupportedError, "model: ... (a hook has taken the place of UMT5Attention.forward; ...)..."):
        relattn.hf.patch(model)

"""Patched models under FSDP2, with a group of its own for every embedding: its rows are whole only while it is called.

And `patch` after a wrapper that takes the weights out of the modules.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers as hf
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import relattn.hf
from relattn import UnsupportedError
from tests.bad_input.refusal import refused
from tests.hf.twins import FLOAT32
from tests.peers.cases import made
from tests.wrappers.models import answer, in_both_orders, inputs_of

pytestmark = pytest.mark.wrappers

TABLES = ("t5", "umt5", "longt5_transient_global", "mpnet", "wavlm", "wav2vec2_bert", "seamless_m4t_v2", "speecht5",
          "phi4_multimodal_audio", "granite_speech")  # fmt: skip
"""Families with a table in an embedding that the original calls."""


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """One process: its shards are whole, but tensors of another type."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", TABLES)
def test_a_group_for_every_embedding(name: str, mesh: DeviceMesh) -> None:
    """Outputs and the tables' gradients."""
    model, inputs = made(name), inputs_of(name)
    embeddings = [name for name, module in model.named_modules() if type(module) is nn.Embedding]
    tables = [f"{name}.weight" for name in embeddings if "embed_tokens" not in name and "shared" not in name]

    def grouped(twin: nn.Module) -> nn.Module:
        for embedding in embeddings:
            fully_shard(twin.get_submodule(embedding), mesh=mesh)
        return twin

    expected = answer(name, model, inputs)
    expected.square().sum().backward()
    for twin in in_both_orders(model, grouped):
        found = answer(name, twin, inputs)
        found.square().sum().backward()
        torch.testing.assert_close(found, expected, **FLOAT32)
        for table in tables:
            gradient: Any = twin.get_parameter(table).grad
            theirs = model.get_parameter(table).grad
            torch.testing.assert_close(gradient.full_tensor(), theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item())


def test_a_whole_model_in_a_group(mesh: DeviceMesh) -> None:
    """FSDP2 changes the class of what it shards: patched later, the layers of XLNet would get the original's masks."""
    model, inputs = made("xlnet"), inputs_of("xlnet")
    expected = answer("xlnet", model, inputs)
    relattn.hf.patch(twin := copy.deepcopy(model))
    fully_shard(twin, mesh=mesh)
    torch.testing.assert_close(answer("xlnet", twin, inputs), expected, **FLOAT32)
    with refused(
        UnsupportedError,
        "model: (the whole) cannot be changed (FSDPXLNetModel is a subclass, and may compute something else than its "
        "base) and hands its layers what changed ones do not understand; nothing was changed",
    ):
        relattn.hf.patch(fully_shard(model, mesh=mesh))


def test_flat_parameters(mesh: DeviceMesh) -> None:
    """FSDP1 keeps the weights of all modules in one tensor, and gives them back while it runs."""
    model, inputs = made("lasr"), inputs_of("lasr")
    expected = answer("lasr", model, inputs)
    sharded = FullyShardedDataParallel(model, device_id=torch.device("cpu"), device_mesh=mesh)
    assert relattn.hf.patch(sharded).changed
    torch.testing.assert_close(answer("lasr", sharded, inputs), expected, **FLOAT32)


class Packed(nn.Module):
    """A model's weights as one tensor, and none of them left in it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        for module in model.modules():
            for name in list(module._parameters):
                del module._parameters[name]

    def forward(self, *args: Any, **kwargs: Any) -> Any: ...


def test_weights_that_a_wrapper_has_taken() -> None:
    config = hf.BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
    said = "BertSelfAttention has lost its weights to Packed; patch the model before it is wrapped"
    with refused(UnsupportedError, f"model: relattn can change no attention of Packed ({said}); it is as it was"):
        relattn.hf.patch(Packed(hf.BertModel(config)))
    model = hf.BertModel(config)
    model.encoder.layer[0] = Packed(model.encoder.layer[0])
    with refused(
        UnsupportedError,
        f"model: encoder.layer.0.model.attention.self cannot be changed ({said}) and takes its masks from where others "
        "take theirs; nothing was changed",
    ):
        relattn.hf.patch(model)

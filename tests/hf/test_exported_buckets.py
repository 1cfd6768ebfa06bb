"""Patched models in ONNX at the published sizes: onnxruntime puts every offset into PyTorch's bucket."""

import contextlib
import io
from collections.abc import Callable

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DebertaV2Config,
    DebertaV2Model,
    LayoutLMv3Config,
    LayoutLMv3Model,
    MPNetConfig,
    MPNetModel,
    T5Config,
    T5Model,
)

import relattn.hf

SMALL = {
    "vocab_size": 100,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


class OfIds(nn.Module):
    """A model as a function of its ids, which an encoder and a decoder both get."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(**dict.fromkeys(self.names, ids), return_dict=True)[0]


def t5() -> OfIds:
    sizes = {"vocab_size": 100, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return OfIds(T5Model(T5Config(**sizes)), "input_ids", "decoder_input_ids")


def mpnet() -> OfIds:
    return OfIds(MPNetModel(MPNetConfig(**SMALL, max_position_embeddings=1200)), "input_ids")


def deberta() -> OfIds:
    sizes = {"max_position_embeddings": 512, "position_buckets": 256, "pos_att_type": ["c2p", "p2c"]}
    config = DebertaV2Config(**SMALL, **sizes, relative_attention=True, share_att_key=True, position_biased_input=False)
    return OfIds(DebertaV2Model(config), "input_ids")


def layout() -> OfIds:
    config = LayoutLMv3Config(
        **SMALL, visual_embed=False, max_position_embeddings=1200, coordinate_size=3, shape_size=2
    )
    return OfIds(LayoutLMv3Model(config), "input_ids")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "length"),
    [(t5, 17), (t5, 40), (t5, 600), (mpnet, 600), (layout, 600), (deberta, 600),
     (deberta, 1100)],
)  # fmt: skip
def test_onnxruntime_has_pytorchs_buckets(make: Callable[[], OfIds], length: int) -> None:
    model = make().eval()
    assert relattn.hf.patch(model.model).changed
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "rel" in name:
                parameter.normal_()  # each bucket shows
    ids = torch.randint(3, 99, (1, length))
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        program = torch.onnx.export(model, (ids,), verbose=False)
        expected = model(ids)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: ids.numpy()})[0])
    # A bucket of N(0, 1) that is another changes outputs of order 1 by far more than float32 rounds them.
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5)

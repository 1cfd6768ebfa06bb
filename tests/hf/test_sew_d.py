"""SEW-D as a whole model, and its dropout."""

import pytest
import torch
import transformers as hf

import relattn.hf
from relattn.hf import interface
from tests import seeds
from tests.hf.twins import assert_same_weights
from tests.peers.cases import made
from tests.peers.cases.case import LENGTH, drawn, frames
from tests.peers.cases.sew_d import BOTH, SEW_D


def test_the_whole_model() -> None:
    """From samples, two frames attending as one, with the attention weights among the outputs."""
    model = drawn(hf.SEWDModel(hf.SEWDConfig(**SEW_D, pos_att_type=BOTH, position_buckets=6)))
    samples, mask = torch.randn(2, 100), torch.ones(2, 100, dtype=torch.long)
    mask[0, 60:] = 0
    found, expected = assert_same_weights(model, samples, attention_mask=mask)
    heard = torch.tensor([[True] * 14 + [False] * 10, [True] * 24])
    torch.testing.assert_close(found[0][heard], expected[0][heard], rtol=1e-4, atol=1e-5)


def test_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own probability, torch's seed, and none in evaluation."""
    model, fixed = made("sew_d"), frames(LENGTH)
    relattn.hf.patch(model)
    for layer in model.encoder.layer:
        layer.attention.self.dropout.drop_prob = 0.3
    seen: list[float] = []
    original = interface.relative_attention
    monkeypatch.setattr(
        interface, "relative_attention", lambda *a, **k: seen.append(k["dropout_p"]) or original(*a, **k)
    )

    def draw(seed: int) -> torch.Tensor:
        seeds.start_torch(seed)
        with torch.no_grad():
            return model(**{key: x.clone() for key, x in fixed.items()})[0]

    model.train()
    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    assert set(seen) == {0.3}
    model.eval()
    seen.clear()
    assert torch.equal(draw(0), draw(1))
    assert set(seen) == {0.0}


def test_a_layer_alone() -> None:
    """Beside layers that are not patched, with the mask and the matrix of positions that their encoder makes."""
    model, fixed = made("sew_d"), frames(LENGTH)
    heard = fixed["attention_mask"]
    with torch.no_grad():
        expected = model(**{key: x.clone() for key, x in fixed.items()})[0]
        assert relattn.hf.patch(model.encoder.layer[1]).changed
        found = model(**{key: x.clone() for key, x in fixed.items()})[0]
    torch.testing.assert_close(found[heard], expected[heard], rtol=1e-4, atol=1e-5)

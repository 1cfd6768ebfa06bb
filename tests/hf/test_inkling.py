"""Inkling, Inkling 2 and Inkling 2 Loop through their caches, in steps of any length."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import relattn.hf
from relattn.hf.names import CACHE
from tests import seeds
from tests.hf.twins import CLOSE
from tests.peers.cases.case import drawn
from tests.peers.cases.inkling import INKLING, INKLING2, LOOP, of_text
from tests.peers.compare import everything_in_float64

SETTINGS = {"Inkling": INKLING, "Inkling2": INKLING2, "Inkling2Loop": {**INKLING2, **LOOP}}
KINDS = {"inkling": "Inkling", "inkling2": "Inkling2", "inkling2_loop": "Inkling2Loop"}
STEPS = (5, 1, 1, 4, 3, 1)

every_kind = pytest.mark.parametrize("name", KINDS)


def causal(name: str, **changes: Any) -> nn.Module:
    kind = KINDS[name]
    return drawn(of_text(name, f"{kind}ForCausalLM", f"{kind}TextConfig", **{**SETTINGS[kind], **changes}))


def through_the_cache(model: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """The logits of all tokens, read in STEPS."""
    past: Any = None
    found, start = [], 0
    with torch.no_grad():
        for step in STEPS:
            seen = None if mask is None else mask[:, : start + step]
            output = model(tokens[:, start : start + step], attention_mask=seen, use_cache=True, **{CACHE: past})
            past, start = getattr(output, CACHE), start + step
            found.append(output.logits)
    return torch.cat(found, dim=1)


@pytest.mark.one_in(6)
@every_kind
@pytest.mark.parametrize("padded", [False, True])
def test_steps_through_the_cache(name: str, padded: bool) -> None:
    """The window of four has been passed, and the relative logits' extent, too."""
    model, tokens = causal(name), torch.randint(3, 40, (2, sum(STEPS)))
    mask = torch.ones_like(tokens)
    if padded:
        mask[1, :3] = 0
    expected = through_the_cache(model, tokens, mask if padded else None)
    with relattn.hf.patched(model):
        found = through_the_cache(model, tokens, mask if padded else None)
        with torch.no_grad():
            whole = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[mask.bool()], whole[mask.bool()], rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(12)
@every_kind
@pytest.mark.parametrize(
    "how", [{}, {"use_cache": False}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=lambda how: str(how)
)
def test_generation(name: str, how: dict[str, Any]) -> None:
    """From a whole prompt and one padded on the left."""
    model, tokens, found = causal(name), torch.randint(3, 40, (2, 9)), []
    mask = torch.ones_like(tokens)
    mask[1, :2] = 0
    for patch in (False, True):
        if patch:
            relattn.hf.patch(model)
        seeds.start_torch(3)
        found.append(model.generate(tokens, attention_mask=mask, max_new_tokens=7, **{"do_sample": False, **how}))
    assert torch.equal(*found)
    assert found[0].shape[1] > 10


@pytest.mark.one_in(4)
@every_kind
@pytest.mark.parametrize("layer", ["hybrid_sliding", "hybrid"])
def test_a_static_cache(name: str, layer: str) -> None:
    """The tokens of a dynamic one.

    transformers 5.23 and 5.24 make masks of one length for layers with windows and without, and fail. Without windows
    Inkling reads where its queries start from a tensor that the cache has counted on in, and errs.
    """
    layers = [layer, "hybrid"] * (2 if name == "inkling2_loop" else 1)
    model, tokens = causal(name, layer_types=layers), torch.randint(3, 40, (2, 9))
    how = {"max_new_tokens": 7, "do_sample": False, "disable_compile": True}
    expected = model.generate(tokens, **how)
    if layer == "hybrid_sliding":
        with pytest.raises(RuntimeError, match="must match"):
            model.generate(tokens, cache_implementation="static", **how)
    relattn.hf.patch(model)
    assert torch.equal(model.generate(tokens, cache_implementation="static", **how), expected)


@every_kind
@pytest.mark.parametrize("part", [0, 1], ids=["sliding", "full"])
def test_a_layer_alone(name: str, part: int) -> None:
    """Beside a layer that is not patched, with the mask of pairs that the model makes for both."""
    with everything_in_float64(), torch.no_grad():
        model, tokens = causal(name).double(), torch.randint(3, 40, (2, 9))
        model.set_experts_implementation("eager")
        expected = model(tokens).logits
        relattn.hf.patch(model.model.layers[part].self_attn)
        found = model(tokens).logits
    torch.testing.assert_close(found, expected, **CLOSE)


def test_residuals_over_layers_are_no_attention_over_tokens() -> None:
    """Inkling 2's BlockAttentionResidual: nothing but its class is changed, so that strict=True counts it as done."""
    model = causal("inkling2")
    report = relattn.hf.patch(model, strict=True)
    assert {"model.layers.1.self_attn", "model.layers.1.attention_input"} < set(report.changed)
    kind = type(model.model.layers[1].attention_input)
    assert not {"forward", "__init__"} & set(vars(kind))

"""What `relattn.hf.patch` says of models that it cannot change, and that they stay as they were."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn.utils import parametrize

import relattn.hf
from relattn import UnsupportedError
from tests.bad_input.refusal import refused
from tests.peers.cases import CASES, made
from tests.peers.cases.case import LENGTH


def state(model: nn.Module) -> list[Any]:
    """Classes, attributes and attention implementations."""
    modules = [(type(module), sorted(vars(module))) for module in model.modules()]
    return [*modules, *(m.config._attn_implementation for m in model.modules() if hasattr(m, "config"))]


def assert_refused_and_unchanged(model: nn.Module, message: str) -> None:
    before = state(model)
    with refused(UnsupportedError, message):
        relattn.hf.patch(model)
    assert state(model) == before


def wrap(module: nn.Module) -> None:
    """As parametrizations and FSDP2 do: its class becomes a subclass that is defined in a module of torch."""
    module.register_buffer("scale", torch.ones(()))
    parametrize.register_parametrization(module, "scale", nn.Identity())


def deberta(**changes: Any) -> hf.DebertaModel:
    config = hf.DebertaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, **changes
    )
    return hf.DebertaModel(config)


def rembert() -> hf.RemBertModel:
    config = hf.RemBertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24
    )
    return hf.RemBertModel(config)


def test_patched_twice() -> None:
    model = made("t5")
    relattn.hf.patch(model)
    before = state(model)
    said = "model: is patched already; call relattn.hf.unpatch on it first, for instance to choose another backend"
    with refused(ValueError, said):
        relattn.hf.patch(model, backend="blocks")
    with refused(ValueError, said):
        relattn.hf.patch(model.encoder)
    assert state(model) == before
    relattn.hf.unpatch(model)
    relattn.hf.patch(model, backend="blocks")


def test_nothing_to_undo() -> None:
    model = made("t5")
    with refused(
        ValueError, "model: relattn.hf.patch was not called with this T5ForConditionalGeneration; nothing to undo"
    ):
        relattn.hf.unpatch(model)


@pytest.mark.parametrize("change", [relattn.hf.patch, relattn.hf.unpatch])
@pytest.mark.parametrize(
    ("came", "said"),
    [("google/flan-t5-base", "str"), (nn.Linear, "the class Linear and no instance, Linear(...)")],
)
def test_no_model(change: Callable[[Any], Any], came: Any, said: str) -> None:
    with refused(TypeError, f"model: got {said}; expected a transformers model"):
        change(came)


def test_a_model_without_attention() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with refused(
        UnsupportedError, "model: relattn can change no attention of Sequential (it has none); it is as it was"
    ):
        relattn.hf.patch(model)


def test_a_model_that_relattn_does_not_know() -> None:
    """RemBERT writes its attention itself."""
    assert_refused_and_unchanged(
        rembert(),
        "model: relattn can change no attention of RemBertModel (RemBertSelfAttention takes no attn_implementation, "
        "and relattn has no replacement); it is as it was",
    )


def test_heads_that_talk() -> None:
    model = deberta(talking_head=True, relative_attention=True, pos_att_type=["c2p"])
    assert_refused_and_unchanged(
        model,
        "model: relattn can change no attention of DebertaModel (talking_head=True mixes the scores of all heads); it "
        "is as it was",
    )


def test_bloom_that_adds_in_slices() -> None:
    config = hf.BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=4, pretraining_tp=2, slow_but_exact=True)
    with refused(UnsupportedError, "model: ...(slow_but_exact=True adds up the output projection in slices)..."):
        relattn.hf.patch(hf.BloomModel(config))


def test_some_of_a_model() -> None:
    """Changed and left modules that take their masks from one place cannot part."""
    model = hf.BloomModel(hf.BloomConfig(vocab_size=40, hidden_size=16, n_layer=2, n_head=4))
    model.h[1].self_attention.pretraining_tp, model.h[1].self_attention.slow_but_exact = 2, True
    assert_refused_and_unchanged(
        model,
        "model: h.1.self_attention cannot be changed (slow_but_exact=True adds up the output projection in slices) and "
        "takes its masks from where others take theirs; nothing was changed",
    )


def test_the_report_names_what_was_left() -> None:
    """Two models in one module: one is changed, the other says why not."""
    both = nn.ModuleDict({"text": made("t5").encoder, "other": rembert()})
    report = relattn.hf.patch(both)
    assert set(report.changed) == {f"text.block.{i}.layer.0.SelfAttention" for i in (0, 1)}
    assert all(name.startswith("other.") for name in report.left)
    assert "left     other.encoder" in str(report)
    assert "changed  text.block.0.layer.0.SelfAttention: T5Attention -> RelattnT5Attention" in str(report)


@pytest.mark.parametrize("name", ["t5", "mt5"])
@pytest.mark.parametrize("part", ["encoder.block.0", "encoder.block.1", "decoder.block.1.layer.0.SelfAttention"])
def test_a_layer_of_a_stack_that_shares_its_bias(name: str, part: str) -> None:
    """It would hand the biases of the buckets to a layer that expects those of the pairs, or get these."""
    layer = made(name).get_submodule(part)
    before, kind = state(layer), name.upper()
    with refused(
        UnsupportedError,
        f"model: relattn can change no attention of {type(layer).__name__} ({kind}Attention shares its bias with the "
        f"other layers of a {kind}Stack; patch that, or the model); it is as it was",
    ):
        relattn.hf.patch(layer)
    assert state(layer) == before


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["umt5", "deberta", "deberta_v3", "bloom", "mpt", "wav2vec2_bert", "vits"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_layer_alone(name: str, dtype: torch.dtype) -> None:
    """Beside layers that are not patched, and with the mask that their model makes for them."""
    case, model = CASES[name], made(name)
    inputs = case.inputs(LENGTH)
    if inputs["attention_mask"].dtype == torch.int64:
        inputs["attention_mask"] = inputs["attention_mask"].to(dtype)
    layer = next(module for module in model.modules() if isinstance(module, nn.ModuleList))[1]
    with torch.no_grad():
        expected = case.output(model(**{key: x.clone() for key, x in inputs.items()}), inputs)
        assert relattn.hf.patch(layer).changed
        found = case.output(model(**inputs), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "kind"), [("t5", "T5Attention"), ("bloom", "BloomAttention")])
def test_a_subclass_of_what_is_replaced(name: str, kind: str) -> None:
    """Its forward may be another; and it takes its mask from where the others take theirs."""
    model = made(name)
    one = [module for module in model.modules() if type(module).__name__ == kind][1]
    one.__class__ = type("Own", (type(one),), {})
    assert_refused_and_unchanged(
        model,
        "model: ... cannot be changed (Own is a subclass, and may compute something else than its base) and takes its "
        "masks from where others take theirs; nothing was changed",
    )


def test_a_forward_behind_a_hook() -> None:
    """Such as accelerate sets on each object: the class's forward is then called no more."""
    model = made("umt5").encoder
    for module in model.modules():
        if type(module).__name__ == "UMT5Attention":
            module.forward = partial(module.forward)
    assert_refused_and_unchanged(
        model,
        "model: relattn can change no attention of UMT5Stack (a hook has taken the place of UMT5Attention.forward; "
        "patch the model before, or remove the hook); it is as it was",
    )


def test_a_matrix_of_relative_positions() -> None:
    model = made("deberta")
    relattn.hf.patch(model)
    hidden = torch.randn(1, 5, 16)
    with refused(
        UnsupportedError,
        "relative_pos: got a matrix of relative positions [1, 5, 5]; relattn counts them from the tokens' places; "
        "leave it out, or call relattn.hf.unpatch",
    ):
        model.encoder(hidden, torch.ones(1, 5), relative_pos=torch.zeros(1, 5, 5))


@pytest.mark.parametrize("name", ["wav2vec2_conformer", "wav2vec2_conformer_rotary"])
def test_positions_that_an_encoder_forgot(name: str) -> None:
    model = made(name)
    kind = model.config.position_embeddings_type
    relattn.hf.patch(model)
    with refused(
        ValueError,
        f"relative_position_embeddings: got None with position_embeddings_type={kind!r}; pass those of the encoder's "
        "embed_positions",
    ):
        model.layers[0].self_attn(torch.randn(1, 5, 16))


def test_mpt_beyond_its_table() -> None:
    """max_seq_len is 32 here; transformers fails there in a broadcast."""
    model = made("mpt")
    relattn.hf.patch(model)
    with refused(ValueError, "bias: got visible offsets -39..0 and rows for -31..0; ..."):
        model(torch.randint(3, 40, (1, 40)))


@pytest.mark.parametrize(("name", "kind"), [("wavlm", "WavLMAttention"), ("parakeet", "ParakeetEncoderAttention")])
def test_a_hook_in_a_stack_that_hands_something_on(name: str, kind: str) -> None:
    """The other layers would hand it, or get from it, what only one side understands."""
    model = made(name)
    one = next(module for module in model.modules() if type(module).__name__ == kind)
    one.forward = partial(one.forward)
    assert_refused_and_unchanged(
        model,
        f"model: ... cannot be changed (a hook has taken the place of {kind}.forward; patch the model before, or "
        "remove the hook) and gets from the other layers of its stack what only changed ones understand; nothing was "
        "changed",
    )


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("wavlm", "WavLMAttention", "gets from the other layers of its stack what only changed ones understand"),
        ("bloom", "BloomAttention", "takes its masks from where others take theirs"),
    ],
)
def test_a_layer_that_was_wrapped_before(name: str, kind: str, why: str) -> None:
    """It is no module of torch's own, and of its family still."""
    model = made(name)
    wrap(next(module for module in model.modules() if type(module).__name__ == kind))
    assert_refused_and_unchanged(
        model,
        f"model: ... cannot be changed (Parametrized{kind} is a subclass, and may compute something else than its "
        f"base) and {why}; nothing was changed",
    )


def test_a_layer_that_was_wrapped_after() -> None:
    """Its class has no way back to the original, and the wrapper."""
    model = made("wavlm")
    attention = model.layers[1].attention
    said = (
        "model: layers.1.attention is now of the class ParametrizedRelattnWavLMAttention; take its wrapper off before "
        "relattn.hf.unpatch; nothing was changed"
    )
    with refused(UnsupportedError, said), relattn.hf.patched(model):
        wrap(attention)
        before = state(model)
    assert state(model) == before
    parametrize.remove_parametrizations(attention, "scale")
    relattn.hf.unpatch(model)
    assert type(attention).__name__ == "WavLMAttention"

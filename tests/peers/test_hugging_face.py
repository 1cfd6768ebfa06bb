"""Hugging Face models with relattn in their attention, beside themselves: `relattn.hf.patch`.

Numbers are compared whole model against whole model, in every mode of each architecture. Where the original softens its
float64 through float32 (T5's norms, DeBERTa's scale), both run under `everything_in_float64`.
"""

import contextlib
import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported, UserError
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

import relattn.hf
from relattn import api
from relattn.hf.models import replacement_of
from relattn.hf.replacement import original
from tests import seeds
from tests.peers.cases import CASES, made
from tests.peers.cases.case import BATCH, HEADS, LENGTH, WIDTH, Case
from tests.peers.compare import Arrays, Function, assert_same_numbers, everything_in_float64, longest_sum, outcomes

pytest_plugins = ["tests.contract.fresh"]

every_model = pytest.mark.parametrize("name", CASES)
a_few_models = pytest.mark.one_in(24)  # the others are slow: there are over a hundred models
LAYERS = 2
DRAWS = 5
GENERATION: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "greedy, no cache": {"do_sample": False, "use_cache": False},
    "sampling": {"do_sample": True, "top_k": 5},
    "beams": {"do_sample": False, "num_beams": 3},
    "static cache": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
}
TERMS = LAYERS * longest_sum(BATCH, LENGTH, LENGTH, 2 * WIDTH, WIDTH // HEADS, relative_terms=2)


def patched_copy(model: nn.Module, backend: str = "auto") -> nn.Module:
    twin = copy.deepcopy(model)
    relattn.hf.patch(twin, backend)
    return twin


def split(case: Case, model: nn.Module) -> tuple[Arrays, dict[str, Tensor]]:
    """(what gradients are taken by: parameters and features, the other inputs)."""
    inputs = case.inputs(LENGTH)
    features = {name: tensor for name, tensor in inputs.items() if name in case.features}
    used = {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if not any(part in name for part in case.unused)
    }
    return {**used, **features}, {name: tensor for name, tensor in inputs.items() if name not in features}


def answer(case: Case, model: nn.Module, fixed: dict[str, Tensor]) -> Function:
    """The model as a function of its parameters and features, all of it in their dtype."""

    def function(arrays: dict[str, Tensor]) -> Tensor:
        dtype = next(iter(arrays.values())).dtype
        for module in model.modules():  # Wav2Vec2-Conformer's rotary angles, kept in the dtype of an earlier call
            if hasattr(module, "cached_sequence_length"):
                module.cached_sequence_length = None
        features = {name: arrays[name].clone() for name in arrays if name in case.features}
        parameters = {name: tensor for name, tensor in arrays.items() if name not in features}
        unused, buffers, constants = (
            {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
            for tensors in (dict(model.named_parameters()), dict(model.named_buffers()), fixed)
        )
        with everything_in_float64() if dtype == torch.float64 else contextlib.nullcontext():
            output = functional_call(model, {**unused, **buffers, **parameters}, kwargs={**features, **constants})
        return case.output(output, fixed)

    return function


def cancelling(case: Case, arrays: Arrays) -> dict[str, str]:
    """The arrays whose gradient cancels, and for each one whose gradient adds terms of the same size."""
    return {
        one: one.removesuffix(bias) + weight
        for bias, weight in case.key_biases.items()
        for one in arrays
        if one.endswith(f".{bias}")
    }


@a_few_models
@every_model
def test_outputs_and_gradients(name: str, rng: np.random.Generator) -> None:
    case, model = CASES[name], made(name)
    arrays, fixed = split(case, model)
    ours, peer = (answer(case, m, fixed) for m in (patched_copy(model), model))
    assert_same_numbers(ours, peer, arrays, TERMS, cancels=cancelling(case, arrays))


@pytest.mark.slow
@every_model
def test_half_precision(name: str, rng: np.random.Generator) -> None:
    """In bfloat16 the patched model errs at most twice as much as the model itself, from the same rounded numbers.

    Both errors are draws of one size. All arrays of a draw share what went wrong early in the model, so what is
    compared is the geometric mean, over DRAWS, of the median over the arrays of one error as a multiple of the other.
    """
    case, ratios = CASES[name], []
    for _ in range(DRAWS):
        model = without_kinks(made(name))
        arrays, fixed = split(case, model)
        rounded = {key: tensor.bfloat16() for key, tensor in arrays.items()}
        truth = outcomes(answer(case, model, fixed), rounded, torch.float64)
        if name == "inkling2_loop":  # hands float32 to projections that are bfloat16 then, patched or not
            with pytest.raises(RuntimeError, match="same dtype"):
                outcomes(answer(case, model, fixed), rounded, torch.bfloat16)
            return
        ours, theirs = (
            outcomes(answer(case, one, fixed), rounded, torch.bfloat16) for one in (patched_copy(model), model)
        )
        errors = [[np.linalg.norm(x[key] - exact) for x in (ours, theirs)] for key, exact in truth.items()]
        assert all(0.0 < one < np.inf for one, _ in errors)
        ratios.append(np.median([one / other for one, other in errors]))
    assert np.exp(np.mean(np.log(ratios))) <= 2.0, ratios


def without_kinks(model: nn.Module) -> nn.Module:
    """GELU for ReLU: a rounding that carries one number across 0 would turn a whole gradient."""
    for module in list(model.modules()):
        for child, layer in module.named_children():
            if isinstance(layer, nn.ReLU):
                setattr(module, child, nn.GELU())
    return model


@a_few_models
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.checkpoints])
def test_gradient_checkpointing(name: str, rng: np.random.Generator) -> None:
    """Every layer computed again in the backward pass: the same gradients, bit by bit."""
    case, twin = CASES[name], patched_copy(made(name, use_cache=False))
    arrays, fixed = split(case, twin)
    plain = outcomes(answer(case, without_dropout(twin), fixed), arrays, torch.float32)
    calls = checkpointed(twin)
    again = outcomes(answer(case, twin, fixed), arrays, torch.float32)
    assert calls, "no layer was computed again"
    for key, expected in plain.items():
        np.testing.assert_array_equal(again[key], expected, err_msg=key)


def without_dropout(model: nn.Module) -> nn.Module:
    """In training mode, where layers are checkpointed, with every dropout off."""
    model.train()
    for module in model.modules():
        for setting in ("dropout", "hidden_dropout", "attn_dropout_p", "dropout_rate", "layerdrop"):
            if isinstance(getattr(module, setting, None), int | float):
                setattr(module, setting, 0.0)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.BatchNorm1d):
            module.eval()  # the statistics of a batch change from call to call
        if hasattr(module, "config") and hasattr(module.config, "speech_encoder_layerdrop"):
            module.config.speech_encoder_layerdrop = 0.0
        if hasattr(module, "config") and hasattr(module.config, "layerdrop"):
            module.config.layerdrop = 0.0
    return model


def checkpointed(model: nn.Module) -> list[str]:
    """Turn checkpointing on for every layer that transformers can checkpoint; returns a list that names the calls."""
    calls: list[str] = []

    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(function).__name__)
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)

    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.gradient_checkpointing, module._gradient_checkpointing_func = True, checkpoint
    return calls


@a_few_models
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.dropout])
def test_dropout(name: str, rng: np.random.Generator) -> None:
    """Attention's dropout alone: drawn by torch's seed, with the model's own probability, and not in evaluation."""
    case, twin = CASES[name], without_dropout(patched_copy(made(name)))
    set_attention_dropout(twin, 0.3)
    fixed = case.inputs(LENGTH)

    def draw(seed: int) -> Tensor:
        seeds.start_torch(seed)
        with torch.no_grad():
            return case.output(twin(**{key: x.clone() for key, x in fixed.items()}), fixed)

    torch.testing.assert_close(draw(0), draw(0), rtol=0, atol=0)
    assert not torch.equal(draw(0), draw(1))
    set_attention_dropout(twin, 0.0)
    assert torch.equal(draw(0), draw(1))
    assert probabilities_seen(twin, fixed, 0.3, case.residuals) == {0.3}


def set_attention_dropout(model: nn.Module, p: float) -> None:
    """Wherever a patched module keeps it."""
    for module in model.modules():
        if not hasattr(module, "relattn_backend"):
            continue
        for setting in ("dropout", "attention_dropout", "attn_dropout_p"):
            held = getattr(module, setting, None)
            if isinstance(held, nn.Dropout):
                held.p = p
            elif held is not None:
                setattr(module, setting, p)


def probabilities_seen(model: nn.Module, fixed: dict[str, Tensor], p: float, residuals: bool) -> set[float]:
    """With which dropout_p attention is called; residuals: but for calls without positions."""
    set_attention_dropout(model, p)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        original = api.attend

        def watched(*args: Any, **kwargs: Any) -> Any:
            *_, encoding, _, _, options, _ = args
            if encoding is not None or not residuals:
                seen.append(options.dropout_p)
            return original(*args, **kwargs)

        patch.setattr(api, "attend", watched)
        with torch.no_grad():
            model(**{key: x.clone() for key, x in fixed.items()})
            model.eval()
            evaluated = len(seen)
            model(**{key: x.clone() for key, x in fixed.items()})
    assert set(seen[evaluated:]) == {0.0}, "dropout in evaluation mode"
    return set(seen[:evaluated])


@a_few_models
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.attentions])
def test_attentions(name: str, rng: np.random.Generator) -> None:
    """output_attentions=True: the same weights of every layer, rows of padding apart."""
    case, model = CASES[name], made(name)
    fixed = case.inputs(LENGTH)
    twin = patched_copy(model)
    use_eager(model)
    theirs, ours = (weights_of(m, fixed) for m in (model, twin))
    assert len(theirs) == len(ours) > 0
    for expected, found in zip(theirs, ours, strict=True):
        real = torch.ones(expected.shape[:1] + expected.shape[2:3], dtype=torch.bool)
        if "attention_mask" in fixed and ("decoder_input_ids" not in fixed or expected.shape[2] == LENGTH):
            real = fixed["attention_mask"].bool()
        torch.testing.assert_close(found.transpose(1, 2)[real], expected.transpose(1, 2)[real], rtol=1e-4, atol=1e-5)


def use_eager(model: nn.Module) -> None:
    """transformers' own formula, the only one of its implementations that returns weights."""
    for config in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
        config._attn_implementation_internal = "eager"


def test_seamless_v2_s_eager_attention_adds_its_boolean_mask_as_numbers(rng: np.random.Generator) -> None:
    """transformers 5.23: chunks are a boolean mask, which eager adds to the scores, so that every pair attends.

    Its other implementations mask. Ours does with the weights asked for, too.
    """
    name = "seamless_m4t_v2_chunks"
    case, model = CASES[name], made(name)
    twin, fixed = patched_copy(model), case.inputs(LENGTH)
    hidden = ~fixed["attention_mask"][:, None, None, :].expand(-1, HEADS, LENGTH, -1)
    use_eager(model)
    assert all((weights[hidden] > 0.0).all() for weights in weights_of(model, fixed))
    assert all((weights[hidden] == 0.0).all() for weights in weights_of(twin, fixed))


def weights_of(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The weights that the attention modules return when the model is asked for them, in the order of their calls."""
    found: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, __, output: found.extend(x for x in output if looks_like_weights(x)))
        for module in model.modules()
        if "Attention" in type(module).__name__ and replacement_of(original(type(module))) is not None
    ]
    with torch.no_grad():
        model(**{key: x.clone() for key, x in inputs.items()}, output_attentions=True)
    for hook in hooks:
        hook.remove()
    return found


def looks_like_weights(x: object) -> bool:
    """[B, H, Lq, Lk]: a T5 module returns its position bias beside them, of one batch element."""
    return isinstance(x, Tensor) and x.dim() == 4 and x.shape[0] == BATCH


@a_few_models
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.generates])
@pytest.mark.parametrize("how", GENERATION)
def test_generation(name: str, how: str, rng: np.random.Generator) -> None:
    """The same tokens with the same seed, through the cache and without it, from prompts padded on the left."""
    case, model = CASES[name], made(name)
    prompt = {key: tensor for key, tensor in case.inputs(LENGTH).items() if key != "decoder_input_ids"}
    prompt["attention_mask"][0] = 1  # one row whole, the other padded on the left, as decoders are prompted
    found = []
    for one in (model, patched_copy(model)):
        seeds.start_torch(3)
        found.append(one.generate(**prompt, max_new_tokens=6, **GENERATION[how]))
    assert torch.equal(*found)
    assert found[0].shape[1] > 1


@a_few_models
@every_model
def test_checkpoints_are_interchangeable(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """The same names, shapes and numbers before and after, saved and loaded either way, and pickled."""
    case, model = CASES[name], made(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    twin = patched_copy(model)
    assert {key: tensor.shape for key, tensor in twin.state_dict().items()} == {k: x.shape for k, x in before.items()}
    torch.save(twin.state_dict(), tmp_path / "patched.pt")
    model.load_state_dict(torch.load(tmp_path / "patched.pt", weights_only=True))
    twin.load_state_dict(before)
    fixed = case.inputs(LENGTH)
    copies = (twin, copy.deepcopy(twin), pickle.loads(pickle.dumps(twin)))
    with torch.no_grad():
        expected = case.output(model(**{key: x.clone() for key, x in fixed.items()}), fixed)
        for one in copies:
            found = case.output(one(**{key: x.clone() for key, x in fixed.items()}), fixed)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_saved_and_loaded(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """save_pretrained writes the original's files, byte by byte, which say nothing of relattn."""
    model = made(name)
    if not isinstance(model, PreTrainedModel):  # a part of a model, whose weights a whole one would save
        part = patched_copy(model).state_dict()
        assert all(torch.equal(tensor, part[key]) for key, tensor in model.state_dict().items())
        return
    written = []
    for folder, saved in ((tmp_path / "original", model), (tmp_path / "patched", patched_copy(model))):
        saved.save_pretrained(folder)
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1] and "model.safetensors" in written[0]
    assert b"relattn" not in written[1]["config.json"].lower()


SEVERAL_GRAPHS = {
    "nemotron_asr_streaming": Unsupported, "nemotron_asr_streaming_without_lookahead": Unsupported,
    "vits": UserError, "vits_of_one_window": UserError, "inkling2_loop": Unsupported,
}  # fmt: skip
"""Models that do not compile into one graph without relattn either: Nemotron warns, VITS counts its frames in it, and
Inkling 2 Loop copies tensors.
"""


@pytest.mark.slow
@every_model
def test_compiled(name: str, rng: np.random.Generator) -> None:
    """In one graph where the original compiles into one, else in several; the numbers stay."""
    case, model = CASES[name], made(name)
    twin, fixed = patched_copy(model), case.inputs(LENGTH)

    def answer_of(module: Any, **how: Any) -> Tensor:
        torch._dynamo.reset()
        with torch.no_grad():
            compiled = torch.compile(module, backend="eager", **how)
            return case.output(compiled(**{key: x.clone() for key, x in fixed.items()}), fixed)

    if name in SEVERAL_GRAPHS:
        with pytest.raises(SEVERAL_GRAPHS[name]):
            answer_of(model, fullgraph=True)
    with torch.no_grad():
        expected = case.output(twin(**{key: x.clone() for key, x in fixed.items()}), fixed)
    found = answer_of(twin, fullgraph=name not in SEVERAL_GRAPHS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@a_few_models
@every_model
def test_unpatch(name: str, rng: np.random.Generator) -> None:
    """Classes, configuration and attributes are what they were."""
    model = made(name)

    def state() -> list[Any]:
        modules = [(type(module), sorted(vars(module))) for module in model.modules()]
        configs = [module.config for module in model.modules() if hasattr(module, "config")]
        return [*modules, *(config._attn_implementation for config in configs)]

    case = CASES[name]
    fixed = case.inputs(LENGTH)

    def output() -> Tensor:
        with torch.no_grad():
            return case.output(model(**{key: x.clone() for key, x in fixed.items()}), fixed)

    expected, before = output(), state()  # the first forward pass of some originals leaves attributes behind
    with relattn.hf.patched(model) as report:
        assert sum(" -> " in how for how in report.changed.values()) == CASES[name].replaced
        assert not report.left and not report.remains
        assert state() != before
        output()
    assert state() == before
    assert torch.equal(output(), expected)

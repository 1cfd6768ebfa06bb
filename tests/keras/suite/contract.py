"""Every encoding of relattn.keras against its paper's formula in float64: outputs and every gradient, in the budget.

The cases, settings and error budget are those of the PyTorch side (tests/contract). Each case's module, sums included,
is carried over by `from_torch`. Its weights are then given by name, so that names and shapes are held to be the same.
"""

import os
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from relattn.keras import EncodingSum, from_torch
from relattn.keras.attend import Mask
from relattn.keras.loop import attend
from relattn.keras.positions import Positions
from relattn.keras.terms import ScoreTerms
from tests import seeds
from tests.contract.cases import CASES, EncodingCase, Part
from tests.contract.check import draw_cotangents, sum_lengths
from tests.contract.check import gradients_of as torch_gradients
from tests.contract.plain import magnitudes, plain_attention
from tests.contract.settings import Setting, make_setting
from tests.contract.subject import Subject, make_subject
from tests.keras.gradients import BACKEND, answer_and_gradients, numpy_of, precision
from tests.oracle import assert_within_budget, complex_step_gradients, max_error
from tests.oracle.budget import EPS

EXAMPLES = int(os.environ.get("RELATTN_KERAS_EXAMPLES", "2"))


TORCH_ALONE = ("kerple", "sandwich", "function")
ENCODINGS = [
    name
    for name, case in CASES.items()
    if isinstance(case, EncodingCase) and not any(alone in name for alone in TORCH_ALONE)
]


def layer_of(parts: list[Part]) -> Any:
    """What `from_torch` makes of the sum of the parts; None without one."""
    return from_torch(reduce(add, [part.module for part in parts])) if parts else None


def draw(rng: np.random.Generator, case: EncodingCase, kind: str) -> Setting:
    """A setting without what the Keras face does not have: grouped heads, segments, float masks."""
    setting = make_setting(
        lambda options: options[int(rng.integers(len(options)))], **case.requirements(), kind=kind, longest=9
    )
    changes: dict[str, Any] = {"num_kv_heads": setting.num_heads, "segment_ids": None}
    if setting.has_float_mask:
        changes["attn_mask"] = setting.attn_mask > -np.inf
    return replace(setting, **changes)


def positions_of(s: Setting) -> Positions:
    """As the layer would make them: an int, a scalar tensor, or the position of every element."""
    starts = [ops.convert_to_tensor(p, "int32") if isinstance(p, np.ndarray) else p
              for p in (s.query_position, s.key_position)]  # fmt: skip
    left, right = s.window or (None, None)
    if s.is_causal:
        right = 0 if right is None else min(right, 0)
    return Positions(*starts, s.query_length, s.key_length, None if left is None else -left, right)


def attention(subject: Subject, layer: Any, positions: Positions, block: int | None, tensors: dict[str, Any]) -> Any:
    """relattn.keras' attention of the subject's call."""
    s = subject.setting
    mask = Mask(
        keys=None if s.key_mask is None else ops.convert_to_tensor(s.key_mask),
        pairs=None if s.attn_mask is None else ops.convert_to_tensor(s.attn_mask),
    )
    terms, key = ScoreTerms(), tensors["key"]
    if layer is not None:
        key = layer.prepare_keys(key, positions.key)
        terms = layer.terms(tensors["query"], positions)
    scale = s.head_dim**-0.5 if s.scale is None else s.scale
    return attend(
        tensors["query"], key, tensors["value"], terms, positions, mask,
        scale=scale, dropout=0.0, seed=None, block=block, return_weights=False,
    )[0]  # fmt: skip


def weights_of(layer: Any) -> dict[str, Any]:
    """Every weight of a layer, or of the operands of a sum, by the name of the parameter among the subject's arrays."""
    operands = layer.operands if isinstance(layer, EncodingSum) else [layer]
    return {f"{i}.{weight.name}": weight for i, operand in enumerate(operands) for weight in operand.weights}


def weight_name(name: str) -> str:
    """ "0.linear_pos.weight" among the subject's arrays is "0.linear_pos_weight" of the layer."""
    part, dot, rest = name.partition(".")
    return part + dot + rest.replace(".", "_")


def check(subject: Subject, dtype: str, block: int | None) -> None:
    """AssertionError where the output or a gradient lies outside of the budget, or has another dtype."""
    numbers = subject.numbers()
    answer = subject.oracle(numbers)
    cotangents = draw_cotangents(subject, answer, dtype)
    cotangents = cotangents[0], np.zeros_like(cotangents[1])
    exact = complex_step_gradients(subject.oracle, numbers, cotangents)
    plain = plain_attention(subject, subject.arrays, next(iter(subject.arrays.values())).dtype)
    formulas = torch_gradients(plain.output, plain.lse, subject.arrays, cotangents)
    sizes = magnitudes(subject, answer, EPS[dtype], cotangents)
    terms = sum_lengths(subject)

    arrays = {weight_name(name): array.astype(dtype) for name, array in numbers.items()}
    with precision(dtype):
        layer, positions = layer_of(subject.parts), positions_of(subject.setting)
        weights = {} if layer is None else weights_of(layer)
        assert set(weights) == set(arrays) - {"query", "key", "value"}

        def call(tensors: dict[str, Any]) -> Any:
            pairs = [(weight, tensors[name]) for name, weight in weights.items()]
            with keras.StatelessScope(state_mapping=pairs):
                return attention(subject, layer, positions, block, tensors)

        output, gradients = answer_and_gradients(call, arrays, cotangents[0])
        assert keras.backend.standardize_dtype(output.dtype) == dtype
        rows = {"output": (numpy_of(output), answer.output, numpy(plain.output))}
        for name in subject.arrays:
            ours = numpy_of(gradients[weight_name(name)])
            rows[f"gradient of {name}"] = ours, exact[name], numpy(formulas[name])
    for name, (actual, truth, formula) in rows.items():
        assert_within_budget(actual, truth, max_error(formula, truth), terms[name], dtype, name, magnitude=sizes[name])


def numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().double().numpy()


def subject_of(name: str, seed: int, dtype: str) -> tuple[Subject, int | None]:
    """One call of a case, and how many queries a block."""
    rng = np.random.default_rng(seed)
    setting = draw(rng, CASES[name], "bare" if rng.integers(3) == 0 else "any")
    return make_subject(CASES[name], setting, dtype), [None, 1, 2, 3, 4][rng.integers(5)]


DTYPES = ("float64", "float32")
CALLS = [(name, dtype) for name in ENCODINGS for dtype in DTYPES]
if BACKEND == "jax":  # which compiles every operation for every shape: the dtypes take turns
    CALLS = [(name, DTYPES[i % 2]) for i, name in enumerate(ENCODINGS)]


@pytest.mark.parametrize(("name", "dtype"), CALLS)
def test_outputs_and_gradients(name, dtype):
    for example in range(EXAMPLES):
        seed = seeds.seed(name, dtype, example)
        subject, block = subject_of(name, seed, dtype)
        try:
            check(subject, dtype, block)
        except Exception as error:
            error.add_note(f"repeat with check(*subject_of({name!r}, {seed}, {dtype!r})), block={block}")
            raise


@pytest.mark.parametrize("name", ["relative_per_head", "shaw"])
def test_one_head_of_several_sequences(name):
    """Often: a table broadcast over them would have TensorFlow 2.21 write beyond its memory, most times unseen."""
    subject = make_subject(CASES[name], Setting(2, 1, 1, 9, 9, 6, 4, seed=5), "float32")
    for _ in range(20 if BACKEND == "tensorflow" else 1):
        check(subject, "float32", None)


def test_the_settings_list_positions_of_one_side_and_of_both():
    """In many calls: a list for all sequences, one for each, and a list beside a start."""
    found = set()
    for seed in range(200):
        setting = draw(seeds.generator(seed), CASES["relative"], "any")
        found.add(tuple(np.ndim(place) for place in (setting.query_position, setting.key_position)))
    assert found == {(i, j) for i in range(3) for j in range(3)}


@pytest.mark.parametrize(
    "name",
    ["music_transformer", "shaw", "txl", "t5", "alibi_3_heads", "rope", "key_query", "disentangled", "rope+shaw"],
)
def test_a_wrong_start_is_found_out(name, monkeypatch):
    """The comparison can fail: queries taken for one position earlier give another answer under every encoding."""
    heads = CASES[name].num_heads or 2
    subject = make_subject(CASES[name], Setting(1, heads, heads, 4, 6, 4, 4, query_position=2, is_causal=True, seed=5))
    check(subject, "float64", None)
    monkeypatch.setitem(
        globals(), "positions_of", lambda s, right=positions_of: right(replace(s, query_position=s.query_position - 1))
    )
    with pytest.raises(AssertionError, match="exceeds the budget"):
        check(subject, "float64", None)

"""Other versions of transformers, made of the installed one: a family that does not fit is left with the reason."""

import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers import masking_utils
from transformers.models.levit.modeling_levit import LevitAttention
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

import relattn.hf
from relattn import UnsupportedError
from relattn.hf import decide, fitting, names
from relattn.hf.installed import FIRST, LAST, VERSION, release
from relattn.hf.models import FILES, SINCE, package, replacements
from relattn.hf.replacement import Replacement
from tests.bad_input.refusal import refused
from tests.peers.cases import made
from tests.peers.cases.case import TEXT

Forward = Callable[..., Any]


@pytest.fixture(autouse=True)
def _signatures_are_compared_anew() -> Iterator[None]:
    fitting._differing.cache_clear()
    yield
    fitting._differing.cache_clear()


def with_one_more(self: Any, hidden_states, attention_mask=None, position_bias=None, output_attentions=False,
                  temperature=1.0, **kwargs): ...  # fmt: skip


def with_one_by_name(self: Any, hidden_states, attention_mask=None, position_bias=None, output_attentions=False, *,
                     temperature=1.0, **kwargs): ...  # fmt: skip


def with_one_less(self: Any, hidden_states, attention_mask=None, position_bias=None, **kwargs): ...


def without_the_rest(self: Any, hidden_states, attention_mask=None, position_bias=None, output_attentions=False): ...


def with_the_rest(self: Any, hidden_state, **kwargs): ...


def lacking(model: str, family: str, why: str) -> str:
    return (
        f"model: relattn can change no attention of {model} (transformers {VERSION} lacks what relattn needs of "
        f"{family}: {why}; relattn was run with {SINCE.get(family, FIRST)} to {LAST}); it is as it was"
    )


@pytest.mark.parametrize("forward", [with_one_more, with_one_by_name])
def test_an_argument_that_ours_would_not_read(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement's **kwargs would swallow it."""
    monkeypatch.setattr(MPNetSelfAttention, "forward", forward)
    why = "MPNetSelfAttention.forward takes 'temperature', which relattn does not know"
    with refused(UnsupportedError, lacking("MPNetModel", "mpnet", why)):
        relattn.hf.patch(made("mpnet"))


def test_an_argument_that_ours_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that older versions have in another form says so."""
    monkeypatch.setattr(LevitAttention, "forward", lambda self: None)
    monkeypatch.setitem(SINCE, "levit", "5.10")
    with refused(UnsupportedError, lacking("LevitEncoder", "levit", "LevitAttention.forward takes no 'hidden_state'")):
        relattn.hf.patch(made("levit"))


def test_keywords_that_ours_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement has no **kwargs, and would fail on what a model hands over in them."""
    monkeypatch.setattr(LevitAttention, "forward", with_the_rest)
    with refused(UnsupportedError, lacking("LevitEncoder", "levit", "LevitAttention.forward takes any keywords")):
        relattn.hf.patch(made("levit"))


@pytest.mark.parametrize("forward", [with_one_less, without_the_rest])
def test_arguments_that_the_original_lacks(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives them, and ours have defaults."""
    monkeypatch.setattr(MPNetSelfAttention, "forward", forward)
    assert relattn.hf.patch(made("mpnet")).changed


@pytest.mark.parametrize("family", FILES)
def test_every_replacement_fits_from_the_version_on_that_is_told(family: str) -> None:
    """Its modules too, where a model is patched: `tests.peers.other_versions`."""
    if release(SINCE.get(family, FIRST)) <= release(VERSION):
        for original, replacement in replacements(FILES[family]).items():
            assert package(original) != family or fitting._differing(replacement) is None, original


class Original(nn.Module):
    """One of transformers' modules in a newer version: the cache has another name, and another place."""

    def forward(self, x: int, cache: Any = None, mask: Any = None) -> Any: ...


class Replaced(Replacement, Original):
    def forward(self, x: int, mask: Any = None, past_key_values: Any = None, scale: float = 1.0) -> Any:
        return x, mask, past_key_values, scale


def test_arguments_under_another_name_and_at_another_place() -> None:
    """The replacement is called as the original would be, or by the older name."""
    ours = Replaced()
    assert fitting._differing(Replaced) is None
    for found in (
        ours(1, 2, 3),
        ours(1, cache=2, mask=3),
        ours(1, past_key_values=2, mask=3),
        ours(mask=3, x=1, cache=2),
    ):
        assert found == (1, 3, 2, 1.0)
    assert ours(1, scale=2.0) == (1, None, None, 2.0)
    assert torch.compile(ours, backend="eager", fullgraph=True)(1, 2, mask=3) == (1, 3, 2, 1.0)


def test_arguments_too_many() -> None:
    """One more than the original takes, or one twice, by its place and by either name."""
    ours, twice = Replaced(), "...Replaced.forward() got multiple values for keyword argument {}"
    said = "Original.forward() takes 4 positional arguments (self, x, cache, mask) but 5 were given"
    with refused(TypeError, said):
        ours(1, 2, 3, 4)
    with refused(TypeError, twice.format("'x'")):
        ours(1, x=2)
    with refused(TypeError, twice.format("'past_key_values'")):
        ours(1, 2, past_key_values=3)


def test_a_cache_under_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking_utils, "create_causal_mask", lambda store: None)
    with refused(
        ImportError,
        f"transformers: version {VERSION} is installed, whose create_causal_mask has no argument 'past_key_values' or "
        f"'cache'; relattn.hf was run with {FIRST} to {LAST}; install 'transformers>={FIRST},<={LAST}.*'",
    ):
        runpy.run_path(names.__file__)


def test_classes_beside_a_replaced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer version has one more in the same package, with positions of its own."""
    monkeypatch.setattr(decide, "_code_of", lambda kind: "ALL_ATTENTION_FUNCTIONS(relative_position)")
    model = hf.Siglip2TextModel(hf.Siglip2TextConfig(**TEXT, intermediate_size=24))
    said = "Siglip2Attention is defined in a file with relative positions that relattn does not support"
    with refused(
        UnsupportedError, f"model: relattn can change no attention of Siglip2TextModel ({said}); it is as it was"
    ):
        relattn.hf.patch(model)


PROGRAM = """
import relattn.hf
from tests.peers.cases import made
from transformers.utils import output_capturing
for name, model in (("_active_collector", "sam"), ("_CAN_RECORD_REGISTRY", "xlnet")):
    {change}
    try:
        relattn.hf.patch(made(model))
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("delattr(output_capturing, name)", "transformers.utils.output_capturing has no {name}"),
        ("setattr(output_capturing, name, 1)", "{name} of transformers.utils.output_capturing has no {needs}"),
    ],
    ids=["gone", "another"],
)
def test_private_names(change: str, why: str) -> None:
    """What transformers keeps to itself may go: a sentence, and the model as it was."""
    run = subprocess.run([sys.executable, "-c", PROGRAM.format(change=change)], capture_output=True, text=True)
    expected = [
        lacking("SamVisionModel", "sam", why.format(name="_active_collector", needs="get")),
        lacking("XLNetModel", "xlnet", why.format(name="_CAN_RECORD_REGISTRY", needs="__setitem__")),
    ]
    assert run.stdout.splitlines() == [f"UnsupportedError {said}" for said in expected], run.stderr

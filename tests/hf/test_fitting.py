"""Other versions of transformers, made of the installed one: a family that does not fit is left with the reason."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transformers import __version__ as version
from transformers.models.levit.modeling_levit import LevitAttention
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

import relattn.hf
from relattn import UnsupportedError
from relattn.hf import fitting
from relattn.hf.models import FILES, replacements
from tests.bad_input.refusal import refused
from tests.peers.cases import made

Forward = Callable[..., Any]


@pytest.fixture(autouse=True)
def _signatures_are_compared_anew() -> Iterator[None]:
    fitting._differing.cache_clear()
    yield
    fitting._differing.cache_clear()


def with_another_place(self: Any, hidden_states, attention_mask=None, temperature=1.0, position_bias=None,
                       output_attentions=False, **kwargs): ...  # fmt: skip


def with_one_more(self: Any, hidden_states, attention_mask=None, position_bias=None, output_attentions=False,
                  temperature=1.0, **kwargs): ...  # fmt: skip


def with_one_by_name(self: Any, hidden_states, attention_mask=None, position_bias=None, output_attentions=False, *,
                     temperature=1.0, **kwargs): ...  # fmt: skip


def with_one_less(self: Any, hidden_states, attention_mask=None, position_bias=None, **kwargs): ...


def without_the_rest(self: Any, hidden_states, attention_mask=None, position_bias=None, output_attentions=False): ...


def with_the_rest(self: Any, hidden_state, **kwargs): ...


def lacking(model: str, family: str, why: str) -> str:
    return (
        f"model: relattn can change no attention of {model} (transformers {version} lacks what relattn needs of "
        f"{family}: {why}); it is as it was"
    )


@pytest.mark.parametrize("forward", [with_another_place, with_one_more, with_one_by_name])
def test_an_argument_that_ours_would_not_read(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement's **kwargs would swallow it."""
    monkeypatch.setattr(MPNetSelfAttention, "forward", forward)
    with refused(UnsupportedError, lacking("MPNetModel", "mpnet", "MPNetSelfAttention.forward takes other arguments")):
        relattn.hf.patch(made("mpnet"))


def test_keywords_that_ours_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement has no **kwargs, and would fail on what a model hands over in them."""
    monkeypatch.setattr(LevitAttention, "forward", with_the_rest)
    with refused(UnsupportedError, lacking("LevitEncoder", "levit", "LevitAttention.forward takes other arguments")):
        relattn.hf.patch(made("levit"))


@pytest.mark.parametrize("forward", [with_one_less, without_the_rest])
def test_arguments_that_the_original_lacks(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives them, and ours have defaults."""
    monkeypatch.setattr(MPNetSelfAttention, "forward", forward)
    assert relattn.hf.patch(made("mpnet")).changed


def test_every_replacement_fits_the_installed_version() -> None:
    for file in set(FILES.values()):
        for original, replacement in replacements(file).items():
            assert fitting._differing(replacement) is None, original


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

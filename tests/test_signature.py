"""One signature: all functions take the same arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import relattn
from relattn import (
    ScoreTerms,
    ShawEmbedding,
    T5Bias,
    api,
    attention_and_lse,
    attention_weights,
    call,
    explain,
    plan,
    relative_attention,
)

FUNCTIONS: list[Callable[..., Any]] = [relative_attention, attention_and_lse, attention_weights, explain]
RETURNS = {
    "relative_attention": 'Float[Tensor, "*B Hq Lq Dv"]',
    "attention_and_lse": 'tuple[Float[Tensor, "*B Hq Lq Dv"], Float[Tensor, "*B Hq Lq"]]',
    "attention_weights": 'Float[Tensor, "*B Hq Lq Lk"]',
    "explain": "Explanation",
}

every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)


def plain(annotation: Any) -> str:
    """An annotation's text, with one kind of quotes."""
    assert isinstance(annotation, str)
    return annotation.replace("'", '"')


@every_function
def test_its_arguments(function: Callable[..., Any]) -> None:
    """The names, order, defaults and annotations are those of relative_attention."""
    signature = inspect.signature(function)
    assert signature.parameters == inspect.signature(relative_attention).parameters
    assert plain(signature.return_annotation) == RETURNS[function.__name__]
    assert getattr(relattn, function.__name__) is getattr(api, function.__name__) is function
    assert function.__module__ == api.__name__
    assert function.__doc__


def test_each_says_something_else() -> None:
    assert len({function.__doc__ for function in FUNCTIONS}) == len(FUNCTIONS)
    assert "O_i" in inspect.getdoc(relative_attention).splitlines()[2]
    assert inspect.getdoc(attention_weights).startswith("softmax(S), the weights")
    assert inspect.getdoc(explain).startswith("Which backend")


@every_function
def test_type_hints_resolve(function: Callable[..., Any]) -> None:
    hints = get_type_hints(function)
    assert list(hints) == [*inspect.signature(function).parameters, "return"]
    assert hints["encoding"] == relattn.RelativeEncoding | ScoreTerms | None
    assert (hints["is_causal"], hints["dropout_p"], hints["backend"]) == (bool, float, str)
    if function is explain:
        assert hints["return"] is api.Explanation


def test_the_first_arguments_are_those_of_pytorch() -> None:
    """Its function is a built-in one: its documentation's first line has the signature."""
    described = re.search(r"scaled_dot_product_attention\(([^)]*)\) -> Tensor", F.scaled_dot_product_attention.__doc__)
    assert described
    theirs = [argument.strip().split("=") for argument in described[1].split(",")]
    assert len(theirs) == 8
    ours = list(inspect.signature(relative_attention).parameters.values())
    assert [argument[0] for argument in theirs] == [parameter.name for parameter in ours[:8]]
    assert [argument[1] for argument in theirs[3:]] == [str(parameter.default) for parameter in ours[3:8]]
    assert all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in ours[:8])
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in ours[8:])


@every_function
def test_all_arguments_go_on(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the request, under their names."""
    given: dict[str, Any] = {name: object() for name in inspect.signature(function).parameters}
    came: dict[str, Any] = {}

    class Seen(Exception):
        pass

    def request_of(*positional: Any, **named: Any) -> None:
        came.update(inspect.signature(call.request_of).bind(*positional, **named).arguments)
        raise Seen

    for module in (api, plan):
        monkeypatch.setattr(module, "request_of", request_of)
    with pytest.raises(Seen):
        function(**given)
    assert came.pop("return_lse", False) is (function is attention_and_lse)
    options = came.pop("options")
    assert {**came, **vars(options)} == given


ENCODINGS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "shaw": lambda: ShawEmbedding(8, 2),
    "t5": lambda: T5Bias(2),
}


@pytest.fixture
def inputs() -> list[Tensor]:
    return [torch.randn(2, 2, length, 8) for length in (5, 6, 6)]


@pytest.mark.one_in(5)
@pytest.mark.graphs
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("function", [relative_attention, attention_and_lse], ids=["output", "lse"])
def test_it_compiles_whole(name: str, function: Callable[..., Any], inputs: list[Tensor]) -> None:
    encoding = ENCODINGS[name]()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return function(query, key, value, is_causal=True, encoding=encoding)

    compiled = torch.compile(attend, fullgraph=True, backend="eager")(*inputs)
    torch.testing.assert_close(compiled, attend(*inputs))
    assert isinstance(compiled, tuple) is (function is attention_and_lse)


@pytest.mark.slow
@pytest.mark.graphs
@pytest.mark.parametrize("name", ENCODINGS)
def test_attention_weights_compile_whole(name: str, inputs: list[Tensor]) -> None:
    encoding = ENCODINGS[name]()

    def weights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention_weights(query, key, value, window=(2, 1), encoding=encoding)

    compiled = torch.compile(weights, fullgraph=True, backend="eager")(*inputs)
    torch.testing.assert_close(compiled, weights(*inputs))


@pytest.mark.graphs
def test_the_functions_themselves_compile_whole(inputs: list[Tensor]) -> None:
    for function in (relative_attention, attention_weights):
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(*inputs, is_causal=True), function(*inputs, is_causal=True))

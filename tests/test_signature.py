"""One signature: relative_attention, attention_weights and explain take the same arguments, as type checkers see it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import relattn
from relattn import ScoreTerms, ShawEmbedding, T5Bias, api, attention_weights, explain, relative_attention

FUNCTIONS: list[Callable[..., Any]] = [relative_attention, attention_weights, explain]
RETURNS = {
    "relative_attention": (
        'Float[Tensor, "*B Hq Lq Dv"] | tuple[Float[Tensor, "*B Hq Lq Dv"], Float[Tensor, "*B Hq Lq"]]'
    ),
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
    """The names, order, defaults and annotations of the one place where they stand; the rest is the function's own."""
    signature = inspect.signature(function)
    assert signature.parameters == inspect.signature(api.request_of).parameters
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


def functions_of(name: str) -> list[ast.FunctionDef]:
    """Every definition of a name in api.py, in order."""
    tree = ast.parse(Path(api.__file__).read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]


def arguments_of(definition: ast.FunctionDef) -> list[tuple[str, str, str, str]]:
    """(kind, name, annotation, default) of each argument, as they are written."""

    def written(node: ast.expr | None) -> str:
        return "" if node is None else ast.unparse(node)

    a = definition.args
    assert not (a.posonlyargs or a.vararg or a.kwarg)
    defaults = [None] * (len(a.args) - len(a.defaults)) + list(a.defaults)
    return [
        (kind, argument.arg, written(argument.annotation), written(default))
        for kind, arguments, given in (("any", a.args, defaults), ("keyword", a.kwonlyargs, a.kw_defaults))
        for argument, default in zip(arguments, given, strict=True)
    ]


def test_overloads_for_type_checkers_repeat_it() -> None:
    """All arguments but return_lse, which selects the overload; together the results equal the function's."""
    (request,) = functions_of("request_of")
    overloads = [
        node
        for node in functions_of("relative_attention")
        if [ast.unparse(d) for d in node.decorator_list] == ["overload"]
    ]
    assert len(overloads) == 2
    expected = arguments_of(request)
    assert expected[-1] == ("keyword", "return_lse", "bool", "False")
    last = [("keyword", "return_lse", "Literal[False]", "False"), ("keyword", "return_lse", "Literal[True]", "")]
    for overload, return_lse in zip(overloads, last, strict=True):
        assert arguments_of(overload) == [*expected[:-1], return_lse]
    returned = [overload.returns for overload in overloads]
    assert " | ".join(plain(ast.unparse(node)) for node in returned if node) == RETURNS["relative_attention"]


ENCODINGS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "shaw": lambda: ShawEmbedding(8, 2),
    "t5": lambda: T5Bias(2),
}


@pytest.fixture
def inputs() -> list[Tensor]:
    return [torch.randn(2, 2, length, 8) for length in (5, 6, 6)]


@pytest.mark.one_in(2)
@pytest.mark.graphs
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("return_lse", [False, True], ids=["output", "lse"])
def test_relative_attention_compiles_whole(name: str, return_lse: bool, inputs: list[Tensor]) -> None:
    encoding = ENCODINGS[name]()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return relative_attention(query, key, value, is_causal=True, encoding=encoding, return_lse=return_lse)

    compiled = torch.compile(attend, fullgraph=True, backend="eager")(*inputs)
    torch.testing.assert_close(compiled, attend(*inputs))
    assert isinstance(compiled, tuple) is return_lse


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

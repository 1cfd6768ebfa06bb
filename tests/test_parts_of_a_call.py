"""The gradients of a call are the sums of those of its parts, each with some of the keys."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import relattn
from relattn.backends.base import MergingBackend
from relattn.backends.problem_operator import Answers
from relattn.backends.select import BACKENDS
from relattn.call import Options, checked, request
from relattn.checks.positions import places_of
from relattn.distributed.merge import Merged
from relattn.equation.part import part_of
from relattn.equation.problem import TABLES, Differentiable, Problem
from relattn.positions.positions import limits
from tests import seeds

B, HEADS, KEY_HEADS, QUERIES, KEYS, WIDTH = 2, 4, 2, 24, 40, 8
CUTS = (0, 7, 8, 33, KEYS)
CUTS_OF_QUERIES = (0, 9, QUERIES)
ENCODINGS = {
    "Shaw": lambda: relattn.ShawEmbedding(WIDTH, 5),
    "T5": lambda: relattn.T5Bias(HEADS),
    "Transformer-XL": lambda: relattn.TransformerXLEmbedding(HEADS, WIDTH),
    "DeBERTa": lambda: relattn.DisentangledEmbedding(HEADS, WIDTH, max_distance=16),
}


def normal(name: str, *shape: int) -> Tensor:
    drawn = seeds.generator("parts of a call", name).normal(size=shape)
    return torch.from_numpy(drawn).float().requires_grad_()


def problem_of(encoding: relattn.RelativeEncoding, **options: Any) -> Problem:
    q, k, v = (
        normal(name, B, heads, length, WIDTH)
        for name, heads, length in (("q", HEADS, QUERIES), ("k", KEY_HEADS, KEYS), ("v", KEY_HEADS, KEYS))
    )
    query, key, value, batch = checked(q, k, v, True)
    places = places_of(3, 0, batch, (QUERIES, KEYS), query.device, limits(True, (20, None)))
    return request(query, key, value, batch, places, encoding, Options(**options), return_lse=True).problem


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("backend", ["native", "blocks"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_parts_add_up(dropout_p: float, backend: str, name: str) -> None:
    check(backend, name, dropout_p)


def check(backend: str, name: str, dropout_p: float = 0.0) -> None:
    """The answer and the gradients of the parts, merged and summed, are those that dense gives of the whole."""
    encoding = ENCODINGS[name]()
    for one, parameter in encoding.named_parameters():
        torch.nn.init.zeros_(parameter)
        parameter.data += normal(f"{name} {one}", *parameter.shape).detach()
    problem = problem_of(encoding, scale=0.5, dropout_p=dropout_p).replace(seed=2**60 + 7)
    runs = BACKENDS[backend]
    assert isinstance(runs, MergingBackend)
    assert not list(runs.reasons(problem))
    output, lse = BACKENDS["dense"].run(problem)
    assert lse is not None
    by_output, by_lse = normal("dO", *output.shape).detach(), normal("dlse", *lse.shape).detach()
    names = [*Differentiable._fields[:5], "relative_query", *TABLES]
    every = dict(zip(names, problem.leaves(), strict=True))
    leaves = {name: leaf for name, leaf in every.items() if leaf is not None and leaf.requires_grad}
    wanted = Differentiable.of([name in leaves for name in names])
    expected = torch.autograd.grad((output, lse), list(leaves.values()), (by_output, by_lse))

    merged = Merged.of_nothing([problem])
    sums = {table: torch.zeros_like(held) for table, held in leaves.items()}
    pairs = [(slice(*i), slice(*j)) for i, j in itertools.product(*map(itertools.pairwise, (CUTS_OF_QUERIES, CUTS)))]
    parts = [
        (queries, keys, part_of(problem, queries, keys, problem.key[:, :, keys], problem.value[:, :, keys]))
        for queries, keys in pairs
    ]
    parts = [one for one in parts if (hidden := one[2].mask.hidden()) is None or not hidden.all()]
    assert 2 < len(parts) < len(pairs)
    with torch.no_grad():
        for queries, _, part in parts:
            merged.at(queries).add(runs.part(part), runs.log_base)
        answer = merged.output(), merged.lse(problem, runs.log_base)
        answers = answer[0], merged.maximum, merged.total, by_output, by_lse
        for queries, keys, part in parts:
            of_queries = Answers(*(given[:, :, queries] for given in answers))
            found = dict(zip(names, runs.gradients(part, of_queries, wanted).leaves(), strict=True))
            assert {name for name, gradient in found.items() if gradient is not None} == set(leaves)
            for table, place in sums.items():
                if table in ("query", "relative_query"):
                    place = place[:, :, queries]
                elif table in ("key", "value"):
                    place = place[:, :, keys]
                else:
                    whole, narrow = problem.sequence().tables()[table], part.sequence().tables()[table]
                    at = narrow.first - whole.first
                    place = place[:, at : at + narrow.num_rows]
                place += found[table]
    torch.testing.assert_close(answer[0], output.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(answer[1], lse.detach(), rtol=1e-4, atol=1e-5)
    for (table, found), truth in zip(sums.items(), expected, strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-3, atol=2e-5, msg=lambda text, table=table: f"{table}: {text}")

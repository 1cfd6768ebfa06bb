"""Explicit positions on the kernels: gaps, duplicates, any order, one list or one for each batch element."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from relattn import RelativeEmbedding, ShawEmbedding, T5Bias, attention_and_lse, relative_attention
from relattn.backends.cpu import operator
from tests import seeds
from tests.contract.cases import CASES, HandTable, TermsCase
from tests.contract.check import by_formula
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.native.passes import check
from tests.native.sets import RUNNABLE, every_set
from tests.native.test_native import assert_every_number_of_threads_gives_the_same_bits, drawn

pytestmark = pytest.mark.pairs

FAR = 3 * 2**31
"""Further than 32 bits count."""


def _gaps(rng: np.random.Generator, length: int) -> np.ndarray:
    return np.cumsum(rng.integers(1, 4, length))


def _padded(rng: np.random.Generator, length: int) -> np.ndarray:
    """As of prompts padded on the left: some stand at 0, then they count."""
    return np.maximum(np.arange(length) - int(rng.integers(length)), 0)


EXPLICIT: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "in a row": lambda rng, length: np.arange(length) + int(rng.integers(-9, 9)),
    "gaps": _gaps,
    "duplicates": lambda rng, length: np.sort(rng.integers(0, length // 3 + 1, length)),
    "padded": _padded,
    "descending": lambda rng, length: np.arange(length)[::-1].copy(),
    "any order": lambda rng, length: rng.permutation(length),
    "documents": lambda rng, length: np.arange(length) % 23,
    "int32": lambda rng, length: rng.integers(0, length, length).astype(np.int32),
}


def explicit(kind: str, rng: np.random.Generator, batch: int, queries: int, keys: int) -> dict[str, np.ndarray | int]:
    """Positions of either side or both, one list or one for each batch element."""

    def drawn_list(length: int) -> np.ndarray:
        if rng.integers(2):
            return EXPLICIT[kind](rng, length)
        return np.stack([EXPLICIT[kind](rng, length) for _ in range(batch)])

    positions: dict[str, np.ndarray | int] = {"query_position": drawn_list(queries), "key_position": drawn_list(keys)}
    if rng.integers(4) == 0:
        positions[str(rng.choice(list(positions)))] = int(rng.integers(5))
    return positions


def setting_of(kind: str, name: str, rng: np.random.Generator, queries: int, keys: int, **changes) -> Setting:
    """Two batch elements, grouped heads, causality or a window now and then."""
    needs = CASES[name].requirements()
    heads, causal = needs.get("num_heads") or 4, needs.get("is_causal")
    return Setting(**{
        "batch": 2, "num_heads": heads, "num_kv_heads": heads // 2 if heads % 2 == 0 else 1, "query_length": queries,
        "key_length": keys, "head_dim": 4, "value_dim": 3, **explicit(kind, rng, 2, queries, keys),
        "is_causal": bool(rng.integers(2)) if causal is None else causal,
        "window": ((9, 5), (30, None), None, None)[int(rng.integers(4))], "seed": int(rng.integers(2**32)), **changes,
    })  # fmt: skip


@pytest.mark.one_in(4)
@every_set
@pytest.mark.parametrize("name", CASES)
def test_across_blocks(name: str, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    for kind in rng.choice(list(EXPLICIT), 2, replace=False):
        setting = setting_of(kind, name, rng, int(rng.integers(1, 60)), int(rng.integers(1, 90)))
        check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(8)
@every_set
@pytest.mark.parametrize("name", CASES)
def test_few_queries(name: str, instructions: str, rng: np.random.Generator) -> None:
    """They meet the keys where they lie, in chunks: float32, and bfloat16 of any width."""
    for kind in rng.choice(list(EXPLICIT), 2, replace=False):
        queries, keys = int(rng.integers(1, 3)), int(rng.integers(200, 600))
        setting = setting_of(kind, name, rng, queries, keys, head_dim=20, value_dim=13)
        dtype = str(rng.choice(["float32", "bfloat16"]))
        check(make_subject(CASES[name], setting, dtype), "native", dtype, truth=by_formula)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("instructions", RUNNABLE[:1], indirect=True)
@pytest.mark.parametrize("kind", EXPLICIT)
@pytest.mark.parametrize("name", ["relative", "terms_all"])
def test_the_blocks_that_it_chooses(name: str, kind: str, instructions: str, rng: np.random.Generator) -> None:
    for queries in (1, 210):
        setting = setting_of(kind, name, rng, queries, 400)
        check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@every_set
@pytest.mark.parametrize("queries", [1, 40])
def test_rows_of_a_table_so_far_apart_that_each_pair_has_its_own_product(
    queries: int, instructions: str, rng: np.random.Generator
) -> None:
    """Offsets of a few thousands and every term; those of a table that zeroes lie on either side of its rows, too."""
    positions = {"query_position": rng.integers(0, 3000, queries), "key_position": rng.integers(0, 3000, (2, 50))}
    tables = ("relative_keys", "relative_queries", "relative_values", "bias")
    zeroes = TermsCase(
        {name: HandTable(shared=name == "bias", first=-1200, rows=2000, beyond="zero") for name in tables}
    )
    for case in (CASES["terms_all_error"], CASES["relative_per_head"], CASES["key_query"], zeroes):
        setting = Setting(2, 2, 1, queries, 50, 18, 5, **positions, seed=int(rng.integers(2**32)))
        check(make_subject(case, setting, "float32"), "native", "float32", truth=by_formula)


@every_set
@pytest.mark.parametrize("apart", ["queries", "keys", "both", "one from the other"])
@pytest.mark.parametrize("queries", [2, 40])
def test_positions_beyond_32_bits(apart: str, queries: int, instructions: str, rng: np.random.Generator) -> None:
    """Of some of the queries or keys, or between the two: tables hold there what they hold beyond their edge."""
    query, key = rng.integers(0, 9, (2, queries)), rng.integers(0, 9, (2, 70))
    if apart in ("queries", "both"):
        query += FAR * rng.integers(-1, 2, query.shape)
    if apart in ("keys", "both"):
        key += FAR * rng.integers(-1, 2, key.shape)
    if apart == "one from the other":
        query, key = query + 2**61, key - 2**61 + 5
    for name, limits in (("terms_all", {}), ("terms_all", {"window": (6, 3)}), ("relative_zero", {"is_causal": True})):
        positions = {"query_position": query, "key_position": key}
        setting = Setting(2, 2, 1, queries, 70, 4, 3, **positions, **limits, seed=int(rng.integers(2**32)))
        check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("instructions", RUNNABLE[:1], indirect=True)
@pytest.mark.parametrize("queries", [2, 70])
@pytest.mark.parametrize("mask", ["key_mask", "segments", "boolean", "float"])
def test_beside_masks(mask: str, queries: int, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    """With rows that see nothing, and keys that nobody sees."""
    keys = 90
    given = {
        "key_mask": {"key_mask": rng.random((2, keys)) < 0.3},
        "segments": {"segment_ids": (rng.integers(0, 9, (2, queries)), rng.integers(0, 5, (2, keys)))},
        "boolean": {"attn_mask": rng.random((2, 1, queries, keys)) < 0.05},
        "float": {"attn_mask": np.where(rng.random((1, 4, queries, keys)) < 0.9, -np.inf, rng.normal(size=keys))},
    }[mask]
    for kind in ("gaps", "any order"):
        setting = setting_of(kind, "terms_all", rng, queries, keys, window=(60, 9), **given)
        check(make_subject(CASES["terms_all"], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("instructions", RUNNABLE[:1], indirect=True)
@pytest.mark.parametrize("queries", [2, 45])
@pytest.mark.parametrize("name", ["none", "relative_per_head", "terms_all"])
def test_dropout(name: str, queries: int, instructions: str, rng: np.random.Generator, small_blocks) -> None:
    setting = setting_of("gaps", name, rng, queries, 52, dropout_p=0.4)
    check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


def test_dropped_weights_go_by_the_pair_not_by_its_positions() -> None:
    """The same weights as those of blocks, and as those of contiguous positions."""
    query, key = drawn(1, 2, 300, 8), drawn(1, 2, 400, 8)
    value = torch.eye(400).expand(1, 2, 400, 400)
    found = []
    for backend, position in (("native", torch.randperm(400)), ("blocks", torch.randperm(400)), ("native", 0)):
        seeds.start_torch("dropped weights")
        found.append(relative_attention(query, key, value, dropout_p=0.5, key_position=position, backend=backend) == 0)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


ENCODINGS: dict[str, Callable[[], nn.Module | None]] = {
    "none": lambda: None,
    "shared": lambda: RelativeEmbedding(8, 900),
    "by head": lambda: ShawEmbedding(8, 5, num_heads=4),
    "bias": lambda: T5Bias(4),
}


@pytest.mark.one_in(4)
@every_set
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("kind", ["gaps", "any order"])
def test_every_number_of_threads_gives_the_same_bits(kind: str, name: str, instructions: str, rng) -> None:
    encoding, inputs = ENCODINGS[name](), [drawn(2, 4, 300, 8, requires_grad=True) for _ in range(3)]
    position = torch.from_numpy(EXPLICIT[kind](rng, 300))
    leaves = [*inputs, *([] if encoding is None else encoding.parameters())]

    def found() -> list[Tensor]:
        asked = {"query_position": position, "key_position": position, "is_causal": True, "encoding": encoding}
        output, lse = attention_and_lse(*inputs, **asked, backend="native")
        return [output, lse, *torch.autograd.grad(output.sin().sum() + lse.cos().sum(), leaves)]

    assert_every_number_of_threads_gives_the_same_bits(found)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("kind", ["gaps", "any order"])
def test_few_queries_split_over_threads_give_the_same_bits(kind: str, name: str, rng) -> None:
    encoding, query = ENCODINGS[name](), drawn(2, 4, 1, 8)
    key, value = (drawn(2, 4, 600, 8) for _ in range(2))
    asked = {"encoding": encoding, "key_position": torch.from_numpy(EXPLICIT[kind](rng, 600))}

    @torch.no_grad()
    def found() -> list[Tensor]:
        return list(attention_and_lse(query, key, value, query_position=500, backend="native", **asked))

    assert operator.FEW_PAIRS_TO_SHARE <= 2 * 4 * 800
    assert_every_number_of_threads_gives_the_same_bits(found)


@pytest.mark.parametrize("queries", [operator.QUERIES_OF_A_KEY + 1, 30])
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_call_with_a_gradient_and_one_without_give_the_same_bits(name: str, queries: int) -> None:
    """Not for few queries: only without a gradient do they read the keys as they lie."""
    encoding, inputs = ENCODINGS[name](), [drawn(2, 4, n, 8) for n in (queries, 30, 30)]
    positions = {"query_position": torch.tensor(3), "key_position": torch.randint(0, 50, (2, 30))}
    asked = {"encoding": encoding, **positions, "backend": "native"}
    inputs[0].requires_grad_()
    with torch.no_grad():
        plain = attention_and_lse(*inputs, **asked)
    recorded = attention_and_lse(*inputs, **asked)
    assert recorded[0].requires_grad and not plain[0].requires_grad
    assert all(torch.equal(one, other) for one, other in zip(recorded, plain, strict=True))


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)], ids=str)
def test_empty_batches_and_lengths(sizes: tuple[int, int, int]) -> None:
    batch, queries, keys = sizes
    inputs = [drawn(batch, 4, length, 8, requires_grad=True) for length in (queries, keys, keys)]
    encoding = ENCODINGS["by head"]()
    assert encoding is not None
    output, lse = attention_and_lse(
        *inputs, encoding=encoding, query_position=torch.arange(queries), backend="native",
        key_position=torch.arange(batch * keys).view(batch, keys), is_causal=True,
    )  # fmt: skip
    gradients = torch.autograd.grad(output.sum(), [*inputs, *encoding.parameters()])
    assert output.shape == (batch, 4, queries, 8) and lse.shape == (batch, 4, queries)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    if keys == 0:
        assert (output == 0).all() and (lse == -torch.inf).all()


class Attends(nn.Module):
    """A call whose positions come in, as a compiled or exported model has it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding = ShawEmbedding(8, 5)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Tensor:
        asked = {"query_position": position, "key_position": position, "is_causal": True, "encoding": self.encoding}
        return relative_attention(query, key, value, **asked, backend="native")


@pytest.mark.slow
@pytest.mark.graphs
def test_one_graph_with_open_lengths() -> None:
    attend = Attends()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (7, 12, 33):
        inputs = [drawn(2, 2, length, 8, requires_grad=True) for _ in range(3)]
        position = torch.randint(0, 40, (2, length))
        found, expected = compiled(*inputs, position), attend(*inputs, position)
        assert torch.equal(found, expected)
        leaves = [*inputs, *attend.parameters()]
        pairs = zip(*(torch.autograd.grad(one.sin().sum(), leaves) for one in (found, expected)), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.graphs
def test_an_exported_graph_takes_other_positions() -> None:
    attend, length = Attends().eval(), {2: torch.export.Dim.DYNAMIC}
    given = (*(drawn(2, 2, 9, 8) for _ in range(3)), torch.arange(9).expand(2, 9).contiguous())
    program = torch.export.export(attend, given, dynamic_shapes=(length, length, length, {1: torch.export.Dim.DYNAMIC}))
    assert torch.ops.relattn.native.default in [node.target for node in program.graph.nodes]
    for count in (9, 31):
        other = (*(drawn(2, 2, count, 8) for _ in range(3)), torch.randint(0, 50, (2, count)))
        with torch.no_grad():
            assert torch.equal(program.module()(*other), attend(*other))


@pytest.mark.parametrize("training", [False, True])
def test_scratch_does_not_grow_with_lengths_or_offsets(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what a run of the same lengths and table takes, it is a constant for each thread."""
    asked: list[int] = []
    made = operator.unwritten
    monkeypatch.setattr(operator, "unwritten", lambda floats: asked.append(floats) or made(floats))
    beyond = []
    for length in (600, 2400):
        encoding = RelativeEmbedding(16, length, beyond="clamp")  # a run meets all of its rows
        inputs = [drawn(1, 1, length, 16, requires_grad=training) for _ in range(3)]
        for position in (0, torch.randint(0, 1000 * length, (length,))):
            output = relative_attention(*inputs, encoding=encoding, query_position=position, backend="native")
            if training:
                output.sum().backward()
        half = len(asked) // 2
        beyond.append(sum(asked[half:]) - sum(asked[:half]))
        asked.clear()
    assert beyond[0] == beyond[1] > 0

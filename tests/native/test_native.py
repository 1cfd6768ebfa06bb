"""What native promises beside the equation: the same bits, PyTorch's ways, and a sentence where it cannot."""

import os
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from relattn import (
    OffsetTable,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    ScoreTerms,
    ShawEmbedding,
    T5Bias,
    UnsupportedError,
    attention_and_lse,
    explain,
    relative_attention,
)
from relattn.backends import problem_operator, select
from relattn.backends.cpu import library, operator
from relattn.backends.cpu.backend import NativeBackend
from tests import seeds
from tests.contract.cases import CASES
from tests.contract.check import by_formula, compare, expect
from tests.contract.operators import (
    LAYOUTS,
    assert_vmap_is_refused,
    backward_arguments,
    laid_out,
    operator_arguments,
)
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.native.sets import RUNNABLE, every_set, of

ENCODINGS = {
    "none": lambda: None,
    "shared": lambda: RelativeEmbedding(8, 700),
    "by head": lambda: ShawEmbedding(8, 5, num_heads=4),
    "bias": lambda: T5Bias(4),
}


def drawn(*shape: int, requires_grad: bool = False) -> Tensor:
    return torch.randn(*shape, requires_grad=requires_grad)


def answers(encoding, inputs: list[Tensor], **asked) -> list[Tensor]:
    """Output, lse and every gradient."""
    output, lse = attention_and_lse(*inputs, encoding=encoding, backend="native", **asked)
    leaves = [*inputs, *([] if encoding is None else encoding.parameters())]
    return [output, lse, *torch.autograd.grad(output.sin().sum() + lse.cos().sum(), leaves)]


@pytest.mark.one_in(4)
@every_set
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_number_of_threads_gives_the_same_bits(name: str, instructions: str) -> None:
    """Of answers and gradients, whichever thread takes which unit of work."""
    encoding, inputs = ENCODINGS[name](), [drawn(3, 4, 500, 8, requires_grad=True) for _ in range(3)]
    assert_every_number_of_threads_gives_the_same_bits(lambda: answers(encoding, inputs, is_causal=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["none", "relative"])
def test_few_heads_share_their_keys_out(case: str, rng: np.random.Generator) -> None:
    """Gradients of queries, of tables and of a mask that broadcasts over heads are sums over parts of the keys.

    No sum here cancels by its structure, so the budget's magnitude is its default, the largest number. A row of the
    table meets a diagonal of each head, and an element of the mask one pair of each: no more than a key or a query do.
    """
    mask = rng.normal(size=(1, 1, 650, 650))
    setting = Setting(1, 2, 1, 650, 650, 8, 8, attn_mask=mask, seed=int(rng.integers(2**32)))
    subject = make_subject(CASES[case], setting, "float32")

    def found() -> list[Tensor]:
        output, lse = subject.run("native")
        return [output, lse, *torch.autograd.grad(output.sin().sum() + lse.cos().sum(), list(subject.arrays.values()))]

    assert_every_number_of_threads_gives_the_same_bits(found)
    expected = expect(subject, "float32", truth=by_formula)
    by_query, by_key = (expected.wanted[f"gradient of {name}"].terms for name in ("query", "key"))
    terms = {"gradient of attn_mask": by_query, "gradient of 0.relative_keys": by_key}
    wanted = {
        name: one._replace(terms=terms.get(name, one.terms), magnitude=float(np.abs(one.exact).max()))
        for name, one in expected.wanted.items()
    }
    compare(subject, "native", "float32", expected._replace(wanted=wanted))


def assert_every_number_of_threads_gives_the_same_bits(found: Callable[[], list[Tensor]]) -> None:
    assert library.has_threads()
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 4, 2, 3):
            torch.set_num_threads(threads)
            runs.append(found())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for run in runs[1:] for one, other in zip(runs[0], run, strict=True))


def test_few_queries_split_over_threads_give_the_same_bits() -> None:
    encoding, query = RelativeEmbedding(8, 3000), drawn(2, 4, 1, 8)
    key, value = (drawn(2, 4, 3000, 8) for _ in range(2))

    @torch.no_grad()
    def found() -> list[Tensor]:
        asked = {"encoding": encoding, "query_position": 2999, "backend": "native"}
        return list(attention_and_lse(query, key, value, **asked))

    assert_every_number_of_threads_gives_the_same_bits(found)


@pytest.mark.parametrize("queries", [1, 20])
def test_torchs_default_dtype_and_device_change_nothing(queries: int) -> None:
    """Models are loaded under other defaults, and the kernels write float32."""
    encoding = ENCODINGS["bias"]()
    inputs = [drawn(1, 4, n, 8, requires_grad=True) for n in (queries, 40, 40)]

    def with_and_without_gradients() -> list[Tensor]:
        with torch.no_grad():
            alone = relative_attention(*inputs, encoding=encoding, backend="native")
        return [*answers(encoding, inputs), alone]

    expected = with_and_without_gradients()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        found = with_and_without_gradients()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours, theirs)


def test_four_python_threads_at_once() -> None:
    encoding, inputs = ENCODINGS["shared"](), [drawn(2, 4, 300, 8) for _ in range(3)]
    expected = relative_attention(*inputs, encoding=encoding, backend="native").detach()
    found: list[Tensor] = []

    def work() -> None:
        with torch.no_grad():
            found.extend(relative_attention(*inputs, encoding=encoding, backend="native") for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20 and all(torch.equal(one, expected) for one in found)


def test_scores_far_from_zero_keep_their_digits() -> None:
    """A float mask of -1e30 for all keys leaves the weights uniform, as it leaves them in the equation."""
    value = drawn(1, 1, 5, 3)
    mask = torch.full((1, 1, 2, 5), -1e30)
    found = relative_attention(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 5, 3), value, mask, backend="native")
    torch.testing.assert_close(found, value.mean(2, keepdim=True).expand(1, 1, 2, 3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_any_layout(layout: str) -> None:
    subject = make_subject(CASES["shaw"], Setting(2, 4, 4, 9, 11, 16, 16, seed=seeds.seed(layout)), "float32")
    laid, contiguous = laid_out(layout, subject)
    encoding = subject.arguments()["encoding"]
    one, other = (
        relative_attention(*given.values(), encoding=encoding, backend="native") for given in (laid, contiguous)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)], ids=str)
def test_empty_batches_and_lengths(sizes: tuple[int, int, int]) -> None:
    batch, queries, keys = sizes
    inputs = [drawn(batch, 4, length, 8, requires_grad=True) for length in (queries, keys, keys)]
    output, lse, *gradients = answers(ENCODINGS["shared"](), inputs)
    assert output.shape == (batch, 4, queries, 8) and lse.shape == (batch, 4, queries)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    if keys == 0:
        assert (output == 0).all() and (lse == -torch.inf).all()


CALLS = {
    "no tables": ("none", {}),
    "every table, limits": ("terms_all", {"is_causal": True, "window": (3, None), "query_position": 2}),
    "rewritten query and key": ("terms_all_error", {}),
    "starts as tensors": ("txl", {"query_position": np.array(3), "window": (4, 1)}),
    "explicit positions": ("terms_all", {"is_causal": True, "key_position": np.array([[4, 0, 2, 2, 9, 1]] * 2)}),
    "a key mask": ("t5", {"key_mask": np.arange(6) < np.array([[4], [6]])}),
    "a float mask": ("relative", {"attn_mask": np.ones((2, 1, 1, 6))}),
    "a key bias and a cap": ("relative", {"key_bias": (2, 1), "softcap": 2.0, "is_causal": True}),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", CALLS)
def test_the_operators_pass_opcheck(kind: str, monkeypatch) -> None:
    name, changes = CALLS[kind]
    subject = make_subject(CASES[name], Setting(2, 4, 2, 5, 6, 4, 3, **changes, seed=seeds.seed(kind)), "float32")
    arguments = operator_arguments(problem_operator, "native", subject, 0.0, monkeypatch)
    torch.library.opcheck(torch.ops.relattn.native.default, arguments)
    given = backward_arguments(torch.ops.relattn.native, arguments)
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.relattn.native_backward.default, given, test_utils=utils)


@pytest.mark.graphs
def test_one_graph_with_open_lengths() -> None:
    encoding = ShawEmbedding(8, 5)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return relative_attention(query, key, value, encoding=encoding, backend="native")

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (7, 12, 33):
        inputs = [drawn(1, 2, length, 8, requires_grad=True) for _ in range(3)]
        found, expected = compiled(*inputs), attend(*inputs)
        assert torch.equal(found, expected)
        pairs = zip(*(torch.autograd.grad(one.sum(), inputs) for one in (found, expected)), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_vmap_is_refused(monkeypatch) -> None:
    assert_vmap_is_refused("native", NativeBackend, monkeypatch)


def reasons_of(**asked) -> list[str]:
    """Why native refuses the call."""
    inputs = asked.pop("inputs", None) or [drawn(1, 2, 5, 4) for _ in range(3)]
    with pytest.raises(UnsupportedError) as refusal:
        relative_attention(*inputs, backend="native", **asked)
    assert str(refusal.value).startswith("backend='native' cannot run this: ")
    return refusal.value.reasons["native"]


def test_what_it_does_not_run_it_says() -> None:
    wide = [drawn(1, 2, 5, 4).double() for _ in range(3)]
    assert reasons_of(inputs=wide) == ["it computes in float32, and the query is float64"]
    with forward_ad.dual_level():
        assert reasons_of() == ["it has no forward-mode derivative"]
    elsewhere = [tensor.to("meta") for tensor in wide]
    assert "its kernels run on a CPU, and the query lies on meta" in reasons_of(inputs=[t.float() for t in elsewhere])


class ManyRows(RelativeEncoding):
    """A bias of 0 in a table of many rows, which share their memory."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def terms(self, query: Tensor, key: Tensor, positions: Any) -> ScoreTerms:
        return ScoreTerms(bias=OffsetTable(torch.zeros(1, 1).expand(1, self.rows), 0, "clamp"))


def test_a_table_with_more_rows_than_32_bits_count_is_refused() -> None:
    """Where pairs look their rows up: on an explicit sequence, and on every other axis."""
    sentence = "its kernels count a table's rows in 32 bits where positions are explicit, and bias has 2147483648"
    place = torch.tensor([0, 3, 1, 2, 2**31])  # all rows are met
    explicit = {"key_position": place}
    on_x = {"query_position": {"x": place}, "key_position": {"x": place}}
    inputs = [drawn(1, 2, 5, 4) for _ in range(3)]

    def runs(encoding: RelativeEncoding, **positions: Any) -> bool:
        return explain(*inputs, encoding=encoding, backend="native", **positions).chosen == "native"

    assert reasons_of(encoding=ManyRows(2**31), **explicit) == [sentence]
    assert reasons_of(encoding=ManyRows(2**31).on("x"), **on_x) == [sentence]
    assert runs(ManyRows(2**31 - 1), **explicit)
    assert runs(ManyRows(2**31 - 1).on("x"), **on_x)
    assert runs(ManyRows(2**31))


def test_an_unknown_instruction_set_is_refused() -> None:
    message = "RELATTN_NATIVE: got 'sse9'; expected one of 'avx512bf16', 'avx512', 'avx2', 'generic', 'off'"
    with pytest.raises(ValueError, match=re.escape(message)):
        of("sse9")


def test_what_a_test_asks_for_is_not_kept(monkeypatch) -> None:
    """The library keeps its first answer: asked where the variable is still set, every later test would get that."""
    monkeypatch.delenv("RELATTN_NATIVE", raising=False)
    of("generic")
    assert "RELATTN_NATIVE" not in os.environ


def test_without_kernels_the_others_serve(monkeypatch, tmp_path) -> None:
    """Off, not compiled, damaged, of other sources, for another processor: one sentence, and another one answers."""
    sentences = {of("off"): "RELATTN_NATIVE=off switches its kernels off"}
    monkeypatch.setattr(library, "FILE", tmp_path / "none.so")
    sentences[of("generic")] = "its kernels were not compiled when relattn was installed"
    (tmp_path / "none.failed").write_text("In file included from a.cpp:1:\na.h:3:1: error: what is [this]?\n")
    sentences[of("generic")] = (
        "its kernels were not compiled when relattn was installed: a.h:3:1: error: what is [this]?"
    )
    (tmp_path / "none.so").write_bytes(b"not a library")
    damaged = of("generic")
    assert isinstance(damaged, str)
    sentences[damaged] = f"its kernels cannot be loaded; install relattn again: {tmp_path / 'none.so'}: file too short"
    monkeypatch.undo()
    (tmp_path / "kernels.cpp").write_text("// another\n")
    monkeypatch.setattr(library, "SOURCES", tmp_path)
    sentences[of("generic")] = (
        "its kernels were compiled from other sources than lie beside them; install relattn again"
    )
    monkeypatch.undo()
    monkeypatch.setattr(library, "_runs", lambda *_: False)
    sentences[of("avx2")] = "RELATTN_NATIVE=avx2 asks for instructions that this processor lacks"
    inputs = [drawn(1, 2, 600, 4) for _ in range(3)]
    expected = relative_attention(*inputs, encoding=T5Bias(2), backend="blocks")
    for found, sentence in sentences.items():
        assert found == sentence
        monkeypatch.setattr("relattn.backends.cpu.backend.kernels", lambda found=found: found)
        explanation = explain(*inputs, encoding=T5Bias(2))
        assert explanation.chosen != "native" and explanation.others["native"] == [sentence]
        assert reasons_of(inputs=inputs) == [sentence]
    assert expected.shape == (1, 2, 600, 4)


def test_a_graph_that_asks_for_missing_kernels_is_told(monkeypatch) -> None:
    """It calls the operator without asking the backend."""
    monkeypatch.setattr(operator, "kernels", lambda: "RELATTN_NATIVE=off switches its kernels off")
    inputs = [drawn(1, 2, 5, 4, requires_grad=True) for _ in range(3)]
    message = "backend='native' cannot run this: RELATTN_NATIVE=off switches its kernels off; use 'blocks'"
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        relative_attention(*inputs, backend="native")


def test_auto_takes_it_for_many_pairs_and_where_no_gradient_is_asked() -> None:
    encoding, long, short = T5Bias(2), *([drawn(1, 2, n, 8) for _ in range(3)] for n in (2048, 16))
    assert explain(*long, encoding=encoding).chosen == "native"
    assert explain(*short, encoding=encoding).chosen == "native"  # the bias asks for one: a prepared step
    key_mask = torch.arange(16).expand(1, 16) < 12
    assert explain(*short, encoding=encoding, key_mask=key_mask).chosen == "dense"  # a step that is not
    middle = [drawn(1, 2, 512, 8) for _ in range(3)]
    assert explain(*middle, encoding=encoding).chosen == "native"
    assert explain(*middle, encoding=encoding, dropout_p=0.1).chosen == "native"
    with torch.no_grad():
        assert explain(*short, encoding=encoding).chosen == "native"
        assert explain(long[0][:, :, :1], *long[1:], encoding=encoding).chosen == "native"  # reads them where they lie
        assert explain(long[0][:, :, :9], *long[1:], encoding=encoding).chosen == "dense"  # copying them costs more
        assert explain(*short).chosen == "sdpa"


@pytest.mark.parametrize(
    ("lengths", "options", "chosen"),
    [
        ((256, 256), {"is_causal": True}, "native"),
        ((250, 250), {"is_causal": True}, "sdpa"),
        ((512, 512), {}, "native"),
        ((500, 500), {}, "sdpa"),
        ((64, 64), {"dropout_p": 0.1}, "native"),  # PyTorch's makes every weight
        ((63, 64), {"dropout_p": 0.1}, "sdpa"),
        ((512, 512), {"attn_mask": torch.ones(512, 512, dtype=torch.bool)}, "sdpa"),
        ((16, 4096), {}, "sdpa"),
        ((1, 4096), {}, "sdpa"),
        ((1, 256), {"dtype": torch.bfloat16}, "native"),
        ((1, 255), {"dtype": torch.bfloat16}, "sdpa"),
        ((1, 4096), {"dtype": torch.float16}, "sdpa"),
        ((512, 512), {"dtype": torch.float64}, "sdpa"),
    ],
)
def test_auto_takes_it_without_terms_where_it_outruns_pytorch(
    lengths: Any, options: dict[str, Any], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "HAS_TILES", False)
    options, (queries, keys) = dict(options), lengths
    dtype = options.pop("dtype", torch.float32)
    query, key, value = (torch.randn(1, 8, n, 8, dtype=dtype) for n in (queries, keys, keys))
    assert explain(query, key, value, **options).chosen == chosen
    rotated = explain(query, key, value, encoding=RotaryEmbedding(8).to(dtype), **options)
    assert rotated.chosen == chosen


def test_auto_leaves_bfloat16_to_tiles_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention is faster there, but not with dropout. It takes no tables."""
    monkeypatch.setattr(select, "HAS_TILES", True)
    query, key, value = (torch.randn(1, 8, 512, 8, dtype=torch.bfloat16) for _ in range(3))
    encoding = T5Bias(8).to(torch.bfloat16)
    assert explain(query, key, value).chosen == "sdpa"
    assert explain(query[:, :, :1], key, value).chosen == "sdpa"
    assert explain(query, key, value, dropout_p=0.1).chosen == "native"
    assert explain(query.half(), key.half(), value.half()).chosen == "native"
    assert explain(query, key, value, encoding=encoding).chosen == "native"


def test_auto_takes_blocks_for_many_pairs_that_neither_runs(monkeypatch) -> None:
    """Windows are not PyTorch's, and float64 is not native's, nor anything where it is switched off."""
    query, key, value = (torch.randn(1, 2, 1500, 8) for _ in range(3))
    assert explain(query, key, value, is_causal=True, window=(8, 0)).chosen == "native"
    assert explain(query.double(), key.double(), value.double(), is_causal=True, window=(8, 0)).chosen == "blocks"
    monkeypatch.setattr("relattn.backends.cpu.backend.kernels", lambda: "off")
    assert explain(query, key, value, is_causal=True, window=(8, 0)).chosen == "blocks"


@pytest.mark.parametrize("kind", ["in a row", "any order"])
def test_auto_takes_it_for_explicit_positions(kind: str) -> None:
    """For many pairs, for training steps as where runs are given, for few queries, and else from 2^17 pairs on."""

    def chosen(length: int, queries: int = 0) -> str:
        positions = torch.arange(length) if kind == "in a row" else torch.randperm(length)
        query, key, value = (drawn(1, 8, n, 8) for n in (queries or length, length, length))
        asked = {"query_position": positions[: query.shape[2]], "key_position": positions, "is_causal": True}
        return explain(query, key, value, encoding=encoding, **asked).chosen

    encoding = T5Bias(8)
    assert chosen(1024) == chosen(128) == "native"
    assert chosen(127) == chosen(2048, queries=1) == "dense"  # the bias asks for a gradient
    with torch.no_grad():
        assert chosen(1024) == chosen(128) == chosen(2048, queries=1) == chosen(16, queries=1) == "native"
        assert chosen(127) == chosen(16) == "dense"


def test_the_sets_of_this_machine_are_found() -> None:
    assert RUNNABLE[-1] == "generic"

"""A call by its plan has the bits of a call without, whatever has changed since the plan was made."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relattn
from relattn import (
    AlibiBias,
    DisentangledEmbedding,
    KerpleBias,
    KeyQueryEmbedding,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    SandwichBias,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    plan,
    relative_attention,
)
from relattn.backends import problem_operator
from relattn.backends.dense import DenseBackend
from relattn.encodings.base import EncodingSum
from tests.seeds import start_torch

HEADS, WIDTH = 4, 16
ENCODINGS: dict[str, Callable[[], relattn.RelativeEncoding | None]] = {
    "none": lambda: None,
    "relative": lambda: RelativeEmbedding(WIDTH, 40, num_heads=HEADS),
    "relative clamped": lambda: RelativeEmbedding(WIDTH, 5, beyond="clamp"),
    "shaw": lambda: ShawEmbedding(WIDTH, 4),
    "key query": lambda: KeyQueryEmbedding(WIDTH, 40),
    "t5": lambda: T5Bias(HEADS),
    "alibi": lambda: AlibiBias(HEADS),
    "kerple": lambda: KerpleBias(HEADS),
    "sandwich": lambda: SandwichBias(HEADS),
    "rotary": lambda: RotaryEmbedding(WIDTH),
    "transformer-xl": lambda: TransformerXLEmbedding(HEADS, WIDTH),
    "disentangled": lambda: DisentangledEmbedding(HEADS, WIDTH),
    "shaw + alibi": lambda: ShawEmbedding(WIDTH, 4) + AlibiBias(HEADS),
    "rotary + t5": lambda: RotaryEmbedding(WIDTH) + T5Bias(HEADS),
    "rotary + shaw": lambda: RotaryEmbedding(WIDTH) + ShawEmbedding(WIDTH, 4),
}
BASE: dict[str, Any] = {
    "encoding": "relative", "lengths": (12, 12), "heads": (HEADS, HEADS), "width": WIDTH, "value_width": WIDTH,
    "batch": 2, "dtype": torch.float32, "layout": "plain", "records": False, "is_causal": True, "window": None,
    "scale": None, "softcap": None, "query_position": 0, "key_position": 0, "backend": "auto", "dropout_p": 0.0,
    "threads": 1, "enable_gqa": True, "mask": None,
}  # fmt: skip
CHANGES: dict[str, list[Any]] = {
    "encoding": list(ENCODINGS),
    "lengths": [(12, 12), (1, 12), (1, 13), (5, 12), (12, 7), (0, 12), (33, 33), (200, 200)],
    "heads": [(HEADS, HEADS), (HEADS, 1), (HEADS, 2), (HEADS, 3), (2, 2)],
    "width": [WIDTH, 8],
    "value_width": [WIDTH, 24, 5],
    "batch": [2, 1, 0],
    "dtype": [torch.float32, torch.bfloat16, torch.float16, torch.float64],
    "layout": ["plain", "heads last", "every second", "negative", "more axes"],
    "records": [False, True],
    "is_causal": [True, False, 1, None],
    "window": [None, (3, 0), (3, None), (True, 0), (3.0, 0), [3, 0], (3,), (-1, 0)],
    "scale": [None, 0.5, 1, 0.0, -0.0, True, float("nan"), "1"],
    "softcap": [None, 5.0, 5, True, 0.0],
    "query_position": [0, 3, np.int64(3), True, -2, torch.tensor(3), 2**61],
    "key_position": [0, 2, False],
    "backend": ["auto", "native", "dense", "blocks", "sdpa", "reference", "none"],
    "dropout_p": [0.0, 0, False, -0.0, 2.0],
    "threads": [1, 2],
    "enable_gqa": [True, False, 1],
    "mask": [None, "keys"],
}


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """The calls set their number."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def without_plans(call: Callable[[], Any]) -> Any:
    """What a call answers that has no plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_read_of_call", lambda *_: None)
        patch.setattr(problem_operator, "_read_of", lambda *_: None)
        return call()


def answer(call: Callable[[], Any]) -> Any:
    """What it returns, or the error's kind and text."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def same(found: Any, expected: Any) -> bool:
    """To the bit, also NaN."""
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        return type(found) is type(expected) and found == expected
    flags, others = ((one.dtype, one.stride(), one.requires_grad) for one in (found, expected))
    if flags != others:
        return False
    numbers = (found.nan_to_num(), expected.nan_to_num())
    return torch.equal(*numbers) and torch.equal(*(one.signbit() for one in numbers))


def tensors_of(spec: dict[str, Any]) -> list[Tensor]:
    """q, k and v with new numbers."""
    (queries, keys), (heads, key_heads) = spec["lengths"], spec["heads"]
    found = []
    for length, count, width in (
        (queries, heads, spec["width"]), (keys, key_heads, spec["width"]), (keys, key_heads, spec["value_width"]),
    ):  # fmt: skip
        shape, layout = (spec["batch"], count, length, width), spec["layout"]
        tensor = torch.randn(shape, dtype=torch.float64).to(spec["dtype"])
        if layout == "heads last":
            tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
        elif layout == "every second":
            tensor = tensor.repeat_interleave(2, -1)[..., ::2]
        elif layout == "negative":
            tensor = torch._neg_view(tensor)
        elif layout == "more axes":
            tensor = tensor.unsqueeze(0)
        found.append(tensor.requires_grad_(spec["records"]))
    return found


def called(spec: dict[str, Any], encodings: dict[str, nn.Module | None], tensors: list[Tensor]) -> Callable[[], Any]:
    """The call of a spec; its gradients beside its output, where it records."""
    torch.set_num_threads(spec["threads"])
    names = (
        "is_causal",
        "window",
        "scale",
        "softcap",
        "query_position",
        "key_position",
        "backend",
        "dropout_p",
        "enable_gqa",
    )
    keywords = {name: spec[name] for name in names}
    if spec["mask"]:
        keywords["key_mask"] = torch.arange(spec["lengths"][1]) < torch.tensor([[5], [3]])[: spec["batch"]]

    def call() -> Any:
        with torch.set_grad_enabled(spec["records"]):
            output = relative_attention(*tensors, encoding=encodings[spec["encoding"]], **keywords)
            if not spec["records"]:
                return output
            asked = [*tensors, *encodings[spec["encoding"]].parameters()] if spec["encoding"] != "none" else tensors
            gradients = torch.autograd.grad(output.square().sum(), asked, allow_unused=True, materialize_grads=True)
            return torch.cat([one.flatten() for one in (output, *gradients)])

    return call


def alter(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with one thing changed; most of the time from the base."""
    name = list(CHANGES)[torch.randint(len(CHANGES), ())]
    before = spec if torch.rand(()) < 0.3 else BASE
    return {**before, name: CHANGES[name][torch.randint(len(CHANGES[name]), ())]}


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_one_thing_changed_in_random_order(count: int) -> None:
    """The bits, strides, flags and errors of the same calls without plans."""
    encodings: dict[str, nn.Module | None] = {name: make() for name, make in ENCODINGS.items()}
    spec, hits = BASE, 0
    for _ in range(count):
        spec = alter(spec)
        call = called(spec, encodings, tensors_of(spec))
        found = answer(call)
        hits += any(known.plans for known in plan.KNOWN.values())
        expected = without_plans(lambda call=call: answer(call))
        assert same(found, expected), (spec, found, expected)
    assert hits > count // 2


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("change", [
    {}, {"backend": "native"}, {"dtype": torch.bfloat16, "backend": "native"}, {"lengths": (1, 12)},
    {"lengths": (1, 12), "dtype": torch.float16, "backend": "native"}, {"heads": (HEADS, 2), "backend": "native"},
    {"lengths": (5, 30), "key_position": 3}, {"is_causal": False, "batch": 1}, {"window": (3, 0), "backend": "native"},
    {"layout": "heads last", "softcap": 3.0},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_later_calls_have_the_bits_of_the_first(encoding: str, change: dict[str, Any], records: bool) -> None:
    """The second call makes the plan, the third takes it."""
    encodings: dict[str, nn.Module | None] = {encoding: ENCODINGS[encoding]()}
    spec = {**BASE, **change, "encoding": encoding, "records": records}
    for _ in range(3):
        call = called(spec, encodings, tensors_of(spec))
        assert same(call(), without_plans(call))
    (known,) = plan.KNOWN.values()
    assert len(known.plans) == 1


def test_a_refused_call_is_refused_later() -> None:
    """Its numbers equal those of a call that has a plan."""
    query = torch.randn(1, HEADS, 12, WIDTH)
    for keywords, given in (
        ({"is_causal": True}, {"is_causal": 1}),
        ({"is_causal": True, "window": (1, 0)}, {"is_causal": True, "window": (True, 0)}),
        ({"is_causal": True, "window": (3, 0)}, {"is_causal": True, "window": (3.0, 0)}),
        ({"scale": 1.0}, {"scale": True}),
        ({"query_position": 1}, {"query_position": True}),
    ):
        for _ in range(3):
            relative_attention(query, query, query, **keywords)
        texts = [answer(lambda given=given: relative_attention(query, query, query, **given)) for _ in range(2)]
        assert (
            texts[0]
            == texts[1]
            == without_plans(lambda given=given: answer(lambda: relative_attention(query, query, query, **given)))
        )
        assert isinstance(texts[0], tuple), given


class Three(RelativeEncoding):
    """An encoding whose terms are none."""

    def terms(self, query: Tensor, key: Tensor, positions: Any) -> Any:
        return 3


def test_an_encoding_that_fits_no_more_is_refused_in_its_own_words() -> None:
    query = torch.randn(1, HEADS, 12, WIDTH)
    for _ in range(3):
        relative_attention(query, query, query, is_causal=True)
    for encoding, text in (
        (RelativeEmbedding(WIDTH, 5), "RelativeEmbedding max_length"),
        (T5Bias(3), "T5Bias"),
        (Three(), "Three.terms: returned int"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            relative_attention(query, query, query, is_causal=True, encoding=encoding)


class Kept(nn.Parameter):
    """A parameter of a kind of its own."""


class Counting(RelativeEncoding):
    """A table with the number of its call in it, which raises in the fourth."""

    def __init__(self, kind: type[nn.Parameter]) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0

    def terms(self, query: Tensor, key: Tensor, positions: Any) -> relattn.ScoreTerms:
        self.calls += 1
        if self.calls == 4:
            raise RuntimeError("the fourth call")
        rows = self.kind(torch.full((1, 9, query.shape[3]), float(self.calls)), requires_grad=False)
        return relattn.ScoreTerms(relative_keys=relattn.OffsetTable(rows, -4, "clamp"))


class TwiceAsLarge(EncodingSum):
    """A sum with terms of its own, which a call does not ask: it asks the operands."""

    def terms(self, query: Tensor, key: Tensor, positions: Any) -> relattn.ScoreTerms:
        raise AssertionError


@pytest.mark.parametrize("kind", [nn.Parameter, Kept])
def test_an_encoding_is_asked_once_in_every_call(kind: type[nn.Parameter]) -> None:
    """Also where its terms can have no plan, and where it raises."""
    query, encoding, hooked = torch.randn(1, HEADS, 12, WIDTH), Counting(kind), []
    encoding.register_forward_pre_hook(lambda module, given: hooked.append([type(one) for one in given]))
    for number in range(1, 7):
        another = Counting(kind)
        another.calls = number - 1
        call = partial(relative_attention, query, query, query)
        expected = without_plans(partial(answer, partial(call, encoding=another)))
        assert same(answer(partial(call, encoding=encoding)), expected)
        assert encoding.calls == number == len(hooked)
    assert all(given == hooked[0] for given in hooked)


class LaidOut(RelativeEncoding):
    """Keys that it prepares lie in memory in another order in every second call."""

    calls = 0

    def prepare_keys(self, key: Tensor, key_position: Any) -> Tensor:
        self.calls += 1
        return key.clone() if self.calls % 2 else key.transpose(1, 2).contiguous().transpose(1, 2)

    def terms(self, query: Tensor, key: Tensor, positions: Any) -> relattn.ScoreTerms:
        return relattn.ScoreTerms()


def test_prepared_keys_may_lie_in_memory_as_they_like() -> None:
    query, encoding = torch.randn(2, HEADS, 12, WIDTH), LaidOut()
    expected = relative_attention(query, query, query, backend="native")
    for _ in range(6):
        assert same(relative_attention(query, query, query, encoding=encoding, backend="native"), expected)


def test_a_long_table_is_narrowed_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the rows that a call meets."""
    seen, run = list[int](), DenseBackend.run

    def watched(self: DenseBackend, problem: Any) -> Any:
        seen.append(problem.axes[0].relative_keys.num_rows)
        return run(self, problem)

    monkeypatch.setattr(DenseBackend, "run", watched)
    query, encoding = torch.randn(1, HEADS, 12, WIDTH), RelativeEmbedding(WIDTH, 1000)
    for _ in range(3):
        relative_attention(query, query, query, is_causal=True, encoding=encoding, backend="dense")
    assert seen == [12, 12, 12]


def test_a_sum_of_another_class_is_a_sum() -> None:
    query, encoding = torch.randn(1, HEADS, 12, WIDTH), TwiceAsLarge(T5Bias(HEADS), AlibiBias(HEADS))
    for _ in range(3):
        found = relative_attention(query, query, query, encoding=encoding)
        assert same(found, without_plans(lambda: relative_attention(query, query, query, encoding=encoding)))


def changed_modules() -> Iterator[tuple[str, nn.Module]]:
    """A table whose numbers, memory, rule or dtype have changed."""
    encoding: Any = RelativeEmbedding(WIDTH, 12, num_heads=HEADS)
    yield "as it was", encoding
    with torch.no_grad():
        encoding.relative_keys.add_(1.0)
    yield "other numbers", encoding
    encoding.relative_keys.data = torch.randn(HEADS, 23, WIDTH)
    yield "data set", encoding
    encoding.relative_keys = nn.Parameter(torch.randn(HEADS, 23, 2 * WIDTH)[..., ::2])
    yield "other strides", encoding
    encoding.beyond = "clamp"
    yield "another rule", encoding
    encoding.relative_keys = nn.Parameter(torch.randn(1, 9, WIDTH))
    encoding.max_length = 5
    yield "fewer rows", encoding
    encoding.beyond = "zero"
    yield "nothing beyond them", encoding
    yield "a copy", copy.deepcopy(encoding)
    yield "pickled", pickle.loads(pickle.dumps(encoding))
    encoding.register_forward_hook(lambda module, given, terms: relattn.ScoreTerms())
    yield "a hook", encoding


def test_a_module_that_changes_needs_no_signal() -> None:
    query = torch.randn(1, HEADS, 12, WIDTH)
    with torch.no_grad():
        for name, encoding in changed_modules():
            for _ in range(3):
                found = relative_attention(query, query, query, is_causal=True, encoding=encoding)
                expected = without_plans(
                    lambda encoding=encoding: relative_attention(query, query, query, is_causal=True, encoding=encoding)
                )
                assert same(found, expected), name


def test_a_gradient_that_is_asked_for_later() -> None:
    """By a tensor under one grad mode, and by the mode."""
    encoding, query = RelativeEmbedding(WIDTH, 12).requires_grad_(False), torch.randn(1, HEADS, 12, WIDTH)

    def call() -> Tensor:
        return relative_attention(query, query, query, encoding=encoding, backend="native")

    assert not any(call().requires_grad for _ in range(3))
    encoding.requires_grad_(True)
    assert all(call().requires_grad for _ in range(3))
    encoding.requires_grad_(False)
    assert not call().requires_grad
    query.requires_grad_(True)
    assert all(call().requires_grad for _ in range(3))
    plan.KNOWN.clear()
    with torch.no_grad():
        assert not any(call().requires_grad for _ in range(3))
    assert call().requires_grad


@pytest.mark.parametrize("later", ["twice", "at once", "a hook"])
def test_gradients_of_a_later_call(later: str) -> None:
    """Second derivatives, gradients for several cotangents at once, and tensors that a hook has saved elsewhere."""
    encoding = ShawEmbedding(WIDTH, 4)

    def found() -> Tensor:
        start_torch("the gradients of a later call")
        query = torch.randn(1, HEADS, 12, WIDTH, requires_grad=True)
        wanted = [query, *encoding.parameters()]
        saved = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor.detach().mT.contiguous().mT if later == "a hook" and tensor.dim() > 1 else tensor,
            lambda tensor: tensor,
        )
        with saved:
            output = relative_attention(query, query, query, encoding=encoding, is_causal=True, backend="native")
        if later == "at once":
            cotangents = torch.randn(3, *output.shape)
            gradients = torch.autograd.grad(output, wanted, cotangents, is_grads_batched=True)
        else:
            gradients = torch.autograd.grad(output.square().sum(), wanted, create_graph=later == "twice")
        if later == "twice":
            gradients = torch.autograd.grad(sum(one.square().sum() for one in gradients), wanted)
        return torch.cat([one.flatten() for one in gradients])

    expected = without_plans(found)
    assert all(same(found(), expected) for _ in range(4))


def test_a_scale_of_zero_keeps_its_sign() -> None:
    """In the zeros of gradients."""
    query = torch.randn(1, HEADS, 12, WIDTH, requires_grad=True)

    def gradient(scale: float) -> Tensor:
        output = relative_attention(query, query.detach(), query.detach(), scale=scale, backend="native")
        return torch.autograd.grad(output.square().sum(), query)[0]

    for scale in (0.0, 0.0, 0.0, -0.0):
        assert same(gradient(scale), without_plans(partial(gradient, scale)))


def test_keys_that_no_query_sees_do_not_matter() -> None:
    """The kernels do not read them: a plan reads no value, and could not leave them out."""
    query, key, value = (torch.randn(1, length, HEADS, WIDTH).transpose(1, 2) for length in (9, 30, 30))
    seen, keywords = slice(7, 19), {"query_position": 10, "is_causal": True, "window": (3, 0)}
    for at in (float("inf"), float("nan"), 1.0, float("inf")):
        value[:, :, : seen.start] = value[:, :, seen.stop :] = at
        found = relative_attention(query, key, value, **keywords, backend="native")
        expected = relative_attention(
            query, key[:, :, seen], value[:, :, seen], **keywords, key_position=seen.start, backend="reference"
        )
        torch.testing.assert_close(found, expected)


def hold_no_tensor(*stores: object) -> None:
    """Nor does anything that they refer to, closures included; but for classes and modules."""
    left, seen = list[Any](stores), set[int]()
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (type, types.ModuleType)):
            continue
        if isinstance(one, types.FunctionType):
            left += [cell.cell_contents for cell in one.__closure__ or ()]
            continue
        seen.add(id(one))
        assert not isinstance(one, Tensor)
        left += gc.get_referents(one)


def test_plans_are_bounded_and_hold_no_tensor() -> None:
    """Neither over many lengths nor over many tables."""
    encodings = [RelativeEmbedding(WIDTH, 20 + n) for n in range(2 * plan.MOST_TERMS)]
    for length in range(1, problem_operator.MOST + 9):
        query = torch.randn(1, 1, length, WIDTH, requires_grad=True)
        for _ in range(1 if length < problem_operator.MOST else 2):  # in the second they are made ready
            relative_attention(query, query, query, backend="native").sum().backward()
    with torch.no_grad():
        for length in range(1, problem_operator.MOST + 9):
            query = torch.randn(1, 1, length, WIDTH)
            for _ in range(2):
                relative_attention(query, query, query)
        for encoding in encodings * 2:
            relative_attention(query[:, :, :9], query[:, :, :9], query[:, :, :9], encoding=encoding)
    assert len(plan.KNOWN) == len(problem_operator.PASSES) == problem_operator.MOST
    assert max(len(known.plans) for known in plan.KNOWN.values()) == plan.MOST_TERMS
    hold_no_tensor(plan.KNOWN, problem_operator.PASSES)


def test_threads_share_plans() -> None:
    encoding = ShawEmbedding(WIDTH, 4)

    def work(number: int) -> bool:
        generator, right = torch.Generator().manual_seed(number), []
        with torch.no_grad():
            for n in range(60):
                length = 8 + (number + n) % 5
                query = torch.randn(1, HEADS, length, WIDTH, generator=generator)
                found = relative_attention(query, query, query, is_causal=True, encoding=encoding)
                asked = plan.request_of(query, query, query, True, False, encoding, 0, 0, plan.Options())
                right.append(same(found, asked.run()[0]))
        return all(right)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


IN_THE_KEY = {"get_num_threads", "is_grad_enabled"}
WATCHED = {
    "_are_functorch_transforms_active", "_get_tracing_state", "_is_tracing", "_len_torch_dispatch_stack",
    "is_autocast_enabled", "_has_torch_function_unary", "_has_torch_function_variadic", "is_legacy_batchedtensor",
    "unwrap_if_dead",
}  # fmt: skip
"""Where one of these finds something, there is no plan, or the call ends before it."""
OPERATIONS = {"embedding", "empty", "linear", "scaled_dot_product_attention"}
OF_STEPS = {
    "_has_torch_function", "_remove_obj_from_tls", "_stash_obj_in_tls", "apply", "run_backward", "set_grad_enabled",
    "zeros", "zeros_like",
}  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "native", "dense", "triton"])
def test_what_is_read_while_a_plan_is_made_is_in_its_key(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of torch in C, up to where the plan runs: those that read a setting are known.

    For triton the CPU takes the place of a GPU. What its passes read is in a key of their own: see test_prepared.py.
    """
    seen = set[str]()
    query = torch.randn(1, HEADS, 12, WIDTH)

    def see(frame: types.FrameType, event: str, function: Any) -> None:
        if event == "c_call" and str(getattr(function, "__module__", "")).startswith("torch"):
            seen.add(function.__name__)

    with without_gpu() if backend == "triton" else nullcontext():
        for encoding in (None, *(ENCODINGS[name]() for name in ("relative", "t5", "alibi", "rotary", "disentangled"))):
            relative_attention(query, query, query, is_causal=True, encoding=encoding, backend=backend)
            with monkeypatch.context() as patch:
                patch.setattr(plan.Plan, "run", lambda *_: query)
                before = sys.getprofile()
                sys.setprofile(see)
                relative_attention(query, query, query, is_causal=True, encoding=encoding, backend=backend)
                sys.setprofile(before)
    assert seen > IN_THE_KEY
    assert seen <= IN_THE_KEY | WATCHED | OPERATIONS, seen


def test_what_is_read_while_a_pass_is_made_ready_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of steps, whose passes run from their second time on."""
    seen = set[str]()
    query = torch.randn(1, HEADS, 12, WIDTH, requires_grad=True)

    def see(frame: types.FrameType, event: str, function: Any) -> None:
        if event == "c_call" and str(getattr(function, "__module__", "")).startswith("torch"):
            seen.add(function.__name__)

    monkeypatch.setattr(plan, "_read_of_call", lambda *_: None)
    for encoding in (None, *(ENCODINGS[name]() for name in ("relative", "t5", "disentangled"))):
        for _ in range(2):
            sys.setprofile(see)
            output = relative_attention(query, query, query, encoding=encoding, is_causal=True, backend="native")
            torch.autograd.grad(output, query, query.detach())
            sys.setprofile(None)
    assert all(problem_operator.PASSES.values())
    assert seen <= IN_THE_KEY | WATCHED | OPERATIONS | OF_STEPS, seen - (IN_THE_KEY | WATCHED | OPERATIONS | OF_STEPS)


def without_gpu() -> AbstractContextManager[object]:
    """Kernels of triton are launched on the CPU, and do nothing."""
    pytest.importorskip("triton", reason="Triton is a package for Linux")
    from tests.triton.silent import silent

    return silent()


def test_there_is_no_plan_under_autocast_of_any_device() -> None:
    """Nor is one taken that was made before."""
    query = torch.randn(1, HEADS, 12, WIDTH)
    read = partial(plan._read_of_call, query, query, query, True, False, None, 0, 0, plan.Options())
    assert read() is not None
    for device in plan.DEVICES:
        torch.set_autocast_enabled(device, True)
        try:
            assert read() is None
        finally:
            torch.set_autocast_enabled(device, False)


def test_whether_triton_is_interpreted_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    query = torch.randn(1, HEADS, 12, WIDTH)
    read = partial(plan._read_of_call, query, query, query, True, False, None, 0, 0, plan.Options(backend="triton"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted = read()
    monkeypatch.delenv("TRITON_INTERPRET")
    assert read() != interpreted

"""A step by its plan has the bits of a step without, however the cache grows and whatever has changed meanwhile."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import relattn
from relattn import AlibiBias, KeyQueryEmbedding, RelativeEmbedding, ShawEmbedding, T5Bias, steps
from relattn.backends import problem_operator, select
from relattn.backends.cpu import operator
from relattn.nn import KVCache, RelativeMultiheadAttention
from tests.test_plan import (
    ENCODINGS,
    HEADS,
    IN_THE_KEY,
    OPERATIONS,
    WATCHED,
    WIDTH,
    answer,
    changed_modules,
    hold_no_tensor,
    same,
)

MODEL, BATCH, LONG = HEADS * WIDTH, 2, 600
OF_STEPS: dict[str, Callable[[], relattn.RelativeEncoding | None]] = {
    **ENCODINGS,
    "relative": lambda: RelativeEmbedding(WIDTH, LONG, num_heads=HEADS),
    "short": lambda: RelativeEmbedding(WIDTH, 9),
    "key query": lambda: KeyQueryEmbedding(WIDTH, LONG),
    "alibi learned": lambda: AlibiBias(HEADS, learned=True),
    "t5 + alibi": lambda: T5Bias(HEADS) + AlibiBias(HEADS),
    "shaw + relative": lambda: ShawEmbedding(WIDTH, 4) + RelativeEmbedding(WIDTH, LONG),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GIVEN: dict[str, list[Any]] = {
    "is_causal": [True, False, 1],
    "window": [None, (3, 0), (700, 0), (2, 1), (True, 0)],
    "softcap": [None, 5.0, True, 0.0],
    "query_position": [None, 0, torch.arange(1)],
    "key_mask": [None, torch.ones(BATCH, 1, dtype=torch.bool)],
    "visible_blocks": [None],
}


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """The lives set their number."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def without_plans(call: Callable[[], Any]) -> Any:
    """What a call answers that has no plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_read_of_step", lambda *_: None)
        return call()


def drawn(choices: Any) -> Any:
    return choices[int(torch.randint(len(choices), ()))]


def layer(encoding: str, key_heads: int = HEADS, dtype: torch.dtype = torch.float32) -> RelativeMultiheadAttention:
    return RelativeMultiheadAttention(MODEL, HEADS, OF_STEPS[encoding](), num_kv_heads=key_heads).to(dtype)


def changed(attention: RelativeMultiheadAttention, caches: tuple[KVCache, KVCache]) -> tuple[KVCache, KVCache]:
    """Something else than a step happens, to both caches alike."""
    one, length = caches[0], caches[0].length
    what = int(torch.randint(9, ()))
    if what == 0:
        length = max(one.next_position - int(torch.randint(3, ())), 0)
        for cache in caches:
            answer(lambda cache=cache: cache.truncate(length))
    elif what == 1 and length:
        first = one.first_position + int(torch.randint(2, ()))
        for cache in caches:
            cache.forget(first)
    elif what == 2 and length:
        rows = torch.randint(one.keys.shape[0], (BATCH,))  # pyright: ignore[reportOptionalMemberAccess]
        for cache in caches:
            cache.reorder(rows)
    elif what == 3:
        return copy.deepcopy(caches[0].detach() or caches[0]), copy.deepcopy(caches[1].detach() or caches[1])
    elif what == 4:
        torch.set_num_threads(drawn((1, 2)))
    elif what == 5:
        attention.scale = drawn((None, 0.5, 1))
    elif what == 6:
        attention.backend = drawn(("auto", "auto", "native", "dense", "sdpa"))
    elif what == 7 and attention.encoding is not None:
        for parameter in attention.encoding.parameters():
            parameter.data = parameter.data * 1.5
        for cache in caches:
            cache.kept_rows = type(cache.kept_rows)()
    return caches


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 66))])
def test_a_life_of_a_cache(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits, strides, flags and errors of steps without plans; prompts end near the bounds of pairs."""
    made, hits = list[object](), 0
    chosen = select.select
    monkeypatch.setattr(select, "select", lambda *given: made.append(given) or chosen(*given))
    for _ in range(12):
        name = drawn(list(OF_STEPS))
        attention = layer(name, drawn((HEADS, 2, 1)), drawn(DTYPES)).train(False)
        dtype = attention.q_proj.weight.dtype
        caches = tuple(KVCache(max_length) for max_length in [drawn((None, None, 4, 300))] * 2)
        bound = drawn((1, 5, 256, 512))
        spec: dict[str, Any] = {"is_causal": True}
        for step in range(12):
            count = max(bound - int(torch.randint(5, ())), 1) if step == 0 else drawn((1, 1, 1, 1, 2, 3))
            given = {**spec}
            if step and torch.rand(()) < 0.2:
                field = drawn(list(GIVEN))
                given[field] = drawn(GIVEN[field])
                if field == "key_mask" and given[field] is not None:
                    given[field] = torch.ones(BATCH, caches[0].next_position + count, dtype=torch.bool)
            features, grad = torch.randn(BATCH, count, MODEL).to(dtype), torch.rand(()) < 0.05
            with torch.set_grad_enabled(bool(grad)):
                before = len(made)
                found = answer(lambda: attention(features, cache=caches[0], **given))  # noqa: B023
                hits += len(made) == before and isinstance(found, Tensor)
                expected = without_plans(lambda: answer(lambda: attention(features, cache=caches[1], **given)))  # noqa: B023
            assert same(found, expected), (name, step, given, found, expected)
            assert caches[0].next_position == caches[1].next_position
            if grad:
                for cache in caches:
                    cache.detach()
            if torch.rand(()) < 0.2:
                caches = changed(attention, caches)  # pyright: ignore[reportArgumentType]
    assert hits > 20


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("name", [name for name in OF_STEPS if name != "short"])
def test_a_growing_cache_needs_one_plan(
    name: str, key_heads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through room that is outgrown, too. The first step is checked, the second makes the plan."""
    attention, caches = layer(name, key_heads, dtype), (KVCache(), KVCache())
    prompt = torch.randn(BATCH, 20, MODEL).to(dtype)
    for cache in caches:
        attention(prompt, is_causal=True, cache=cache)
    steps.STEPS.clear()
    for step in range(20):
        token = torch.randn(BATCH, 1, MODEL).to(dtype)
        with pytest.MonkeyPatch.context() as patch:
            if step >= 2:
                patch.setattr(steps, "request", lambda *_, **__: pytest.fail("another plan"))
            found = attention(token, is_causal=True, cache=caches[0])
        assert same(found, without_plans(lambda: attention(token, is_causal=True, cache=caches[1])))  # noqa: B023
    (plans,) = steps.STEPS.values()
    assert len(plans) == 1


@torch.no_grad()
def test_a_step_beyond_the_rows_is_refused_in_the_same_words() -> None:
    """The cache is then as it was."""
    attention, cache, token = layer("short"), KVCache(), torch.randn(1, 1, MODEL)
    for _ in range(9):
        attention(token, is_causal=True, cache=cache)
    steps.STEPS, planned = dict(steps.STEPS), len(steps.STEPS)
    texts = [answer(lambda: attention(token, is_causal=True, cache=cache)) for _ in range(2)]
    texts.append(without_plans(lambda: answer(lambda: attention(token, is_causal=True, cache=cache))))
    assert texts[0] == texts[1] == texts[2] and "max_length" in texts[0][1]
    assert cache.length == 9 and len(steps.STEPS) == planned
    attention(token, is_causal=True, window=(8, 0), cache=cache)


@torch.no_grad()
def test_a_module_that_changes_between_tokens() -> None:
    attention, caches = layer("none"), (KVCache(), KVCache())
    for name, encoding in changed_modules():
        attention.encoding = encoding  # pyright: ignore[reportAttributeAccessIssue]
        for cache in caches:
            cache.truncate(0)
        for count in (8, 1, 1, 1, 1):
            token = torch.randn(BATCH, count, MODEL)
            found = attention(token, is_causal=True, cache=caches[0])
            assert same(found, without_plans(lambda: attention(token, is_causal=True, cache=caches[1]))), name  # noqa: B023


def test_a_step_that_records_a_gradient() -> None:
    attention, cache = layer("shaw").requires_grad_(False), KVCache()
    attention.backend = "native"
    for records in (False, False, False, True, True, True):
        token = torch.randn(BATCH, 1, MODEL, requires_grad=records)
        assert attention(token, is_causal=True, cache=cache).requires_grad == records
        cache.detach()


@torch.no_grad()
def test_a_step_to_a_memory() -> None:
    """A full cache: the keys lie as they came, and queries stand where they are told."""
    for name in ("none", "relative", "t5", "shaw"):
        attention = layer(name)
        memories = [attention.remember(torch.randn(BATCH, 30, MODEL)), KVCache(), KVCache()]
        held = torch.randn(2, BATCH, HEADS, 30, 2 * WIDTH)
        memories[1].fill(*held[..., :WIDTH])
        memories[2].fill(*held[..., ::2])
        for position in range(6):
            for memory in memories:
                token = torch.randn(BATCH, 1, MODEL)

                def step() -> Tensor:
                    return attention(token, query_position=position, cache=memory)  # noqa: B023

                assert same(step(), without_plans(step)), name


@torch.no_grad()
def test_a_cache_that_grows_past_a_bound_of_pairs() -> None:
    """In bfloat16 and without tables another backend is chosen there."""
    keys = select.PLAIN_PAIRS_IF_FEW_QUERIES // (BATCH * HEADS)
    for name in ("none", "rotary"):
        attention, caches = layer(name, dtype=torch.bfloat16), (KVCache(), KVCache())
        for count in (keys - 5, *[1] * 9):
            features = torch.randn(BATCH, count, MODEL).bfloat16()
            found = attention(features, is_causal=True, cache=caches[0])
            expected = without_plans(lambda: attention(features, is_causal=True, cache=caches[1]))  # noqa: B023
            assert same(found, expected), (name, caches[0].length)


@torch.no_grad()
def test_chunks_at_the_start_and_behind_it() -> None:
    """At the start PyTorch's causality is ours, behind it not; the masks are the same."""
    attention = layer("none")
    for _ in range(4):
        caches = KVCache(), KVCache()
        for _ in range(4):
            chunk = torch.randn(BATCH, 2, MODEL)
            found = attention(chunk, is_causal=True, cache=caches[0])
            assert same(found, without_plans(lambda: attention(chunk, is_causal=True, cache=caches[1])))  # noqa: B023


def test_every_bound_of_pairs_is_known() -> None:
    """One that is missing would leave a growing cache with the decision of a shorter one."""
    for module in (select, operator):
        found = {name: value for name, value in vars(module).items() if "PAIRS" in name and isinstance(value, int)}
        assert found and set(found.values()) <= set(steps.PAIRS), found


@torch.no_grad()
def test_plans_of_steps_are_bounded_and_hold_no_tensor() -> None:
    attention = RelativeMultiheadAttention(2, 1, RelativeEmbedding(2, 40))
    for lowest in range(problem_operator.MOST + 9):
        cache = KVCache()
        for _ in range(4):
            attention(torch.randn(1, 1, 2), is_causal=True, softcap=1.0 + lowest, cache=cache)
    assert len(steps.STEPS) == problem_operator.MOST
    hold_no_tensor(steps.STEPS)


def test_threads_share_plans_of_steps() -> None:
    attention = layer("shaw + alibi")

    def work(number: int) -> bool:
        generator, caches, right = torch.Generator().manual_seed(number), (KVCache(), KVCache()), []
        with torch.no_grad():
            for n in range(60):
                token = torch.randn(1, 1 + (number + n) % 2, MODEL, generator=generator)
                found = attention(token, is_causal=True, cache=caches[0])
                mask = torch.ones(1, caches[0].next_position, dtype=torch.bool)  # such a call has no plan
                expected = attention(token, is_causal=True, key_mask=mask, cache=caches[1])
                right.append(torch.allclose(found, expected, atol=1e-5))
        return all(right)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


@torch.no_grad()
def test_what_is_read_while_a_step_is_planned_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of torch in C that reads a setting, from the place of a token to where the plan runs."""
    seen = set[str]()

    def see(frame: types.FrameType, event: str, function: Any) -> None:
        if event == "c_call" and str(getattr(function, "__module__", "")).startswith("torch"):
            seen.add(function.__name__)

    attend = steps.attend

    def watched(*given: Any) -> Tensor:
        before = sys.getprofile()
        sys.setprofile(see)
        try:
            return attend(*given)
        finally:
            sys.setprofile(before)

    for name in ("none", "relative", "t5", "alibi", "rotary", "disentangled", "shaw + alibi"):
        for backend in ("auto", "native"):
            attention, cache = layer(name), KVCache()
            attention.backend = backend
            attention(torch.randn(BATCH, 20, MODEL), is_causal=True, cache=cache)
            for step in range(3):
                if step == 1:
                    monkeypatch.setattr(steps, "attend", watched)
                attention(torch.randn(BATCH, 1, MODEL), is_causal=True, cache=cache)
            monkeypatch.undo()
    assert seen > IN_THE_KEY
    assert seen <= IN_THE_KEY | WATCHED | OPERATIONS, seen

"""Mistakes that others have made with relative positions: each is made here on purpose, and told from our answer.

Every test names one mistake and builds the answer that it gives, in float64, from the oracle or from a few lines of
NumPy; ours must be the oracle's own, and the mistaken one must lie far from it. Where the mistake hides (under
causality, for a power of two of heads, before a cache rolls), that is shown too: it is why the mistake was made.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BeitConfig
from transformers.models.beit.modeling_beit import BeitRelativePositionBias

from relattn import T5Bias, TransformerXLEmbedding, attention_weights, relative_attention
from relattn.nn import KVCache, RelativeMultiheadAttention
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions
from tests.contract.axes import AXES_CASES
from tests.contract.blocks import TESTED_BACKENDS
from tests.contract.cases import CASES, EncodingCase, alibi, of, rope, runnable_pairs, sandwich, t5
from tests.contract.check import check, numpy_of
from tests.contract.places import on_a_grid
from tests.contract.settings import Setting
from tests.contract.subject import INPUTS, Subject, make_subject
from tests.oracle import INGREDIENTS, Ingredients, Pairs, max_error
from tests.oracle.alibi import slopes
from tests.oracle.equation import attend
from tests.oracle.kerple import kernel
from tests.oracle.music_transformer import skew
from tests.oracle.t5 import relative_position_bucket

pytest_plugins = ["tests.contract.fresh"]
pytestmark = pytest.mark.one_in(3)

BACKENDS = [backend for name, backend in runnable_pairs() if name == "terms_all"]
ENCODINGS = ("shaw", "txl", "t5", "alibi_4_heads", "rope")
CLEAR = 1e-3  # what tells a mistake from rounding, which is below 1e-12 for these float64 numbers of size 1
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def fresh(case: str | EncodingCase, rng: np.random.Generator, **setting: Any) -> Subject:
    """A case on fresh float64 numbers: 2 sequences of 6, 4 heads of width 6, unless the setting says otherwise."""
    sizes: dict[str, Any] = {"batch": 2, "num_heads": 4, "query_length": 6, "key_length": 6, "head_dim": 6}
    sizes |= {"value_dim": 6, "seed": int(rng.integers(2**32))} | setting
    sizes.setdefault("num_kv_heads", sizes["num_heads"])
    return make_subject(CASES[case] if isinstance(case, str) else case, Setting(**sizes))


def oracle_of(subject: Subject, **setting: Any) -> np.ndarray:
    """The oracle's output, in another setting where one is given."""
    return replace(subject, setting=replace(subject.setting, **setting)).oracle(subject.numbers()).output


def attend_with(subject: Subject, ingredients: Callable[..., Ingredients], **keywords: Any) -> np.ndarray:
    """The output where an encoding adds `ingredients(query, key, pairs)`."""
    numbers = subject.numbers()
    return attend(tuple(numbers[name] for name in INPUTS), ingredients, **keywords).output


def assert_told_apart(mistaken: np.ndarray, truth: np.ndarray) -> None:
    """The mistaken answer is a number everywhere, and a clearly different one somewhere."""
    assert CLEAR < max_error(mistaken, truth) < math.inf


def assert_right(subject: Subject, backend: str, mistaken: np.ndarray) -> None:
    """Ours is the oracle's within the budget, and the mistaken answer is not."""
    check(subject, backend, "float64", gradients=False)
    assert_told_apart(mistaken, oracle_of(subject))


# --- the score matrix


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_a_skew_that_wraps_rows_above_the_diagonal(backend: str, rng: np.random.Generator) -> None:
    """Huang et al.'s padding and reshaping, used without causality: it fills the future from other rows."""
    subject = fresh("relative", rng)
    numbers = subject.numbers()
    past = numbers["0.relative_keys"][:, : subject.setting.key_length]
    wrapped = skew(numbers["query"] @ np.swapaxes(past, -1, -2))
    mistaken = partial(attend_with, subject, lambda query, key, pairs: Ingredients(scaled=wrapped))
    np.testing.assert_allclose(mistaken(is_causal=True), oracle_of(subject, is_causal=True), **CLOSE)
    assert_right(subject, backend, mistaken())


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize(
    ("queries", "keys", "start", "other_diagonal"),
    [(3, 6, 0, 3), (6, 3, 0, -3), (3, 6, 3, 0)],
    ids=["first of the keys", "more queries than keys", "last of the keys"],
)
def test_start_aligned_against_end_aligned_causality(
    queries: int, keys: int, start: int, other_diagonal: int, backend: str, rng: np.random.Generator
) -> None:
    """Starts of 0 align as PyTorch's is_causal does, at the first key; the newest queries align by their start."""
    subject = fresh(
        "shaw", rng, query_length=queries, key_length=keys, query_position=start, is_causal=True, num_kv_heads=2
    )
    triangle = np.tril(np.ones((1, 1, queries, keys), dtype=bool), other_diagonal)
    assert_right(subject, backend, oracle_of(subject, is_causal=False, attn_mask=triangle))


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_a_bias_of_one_row_per_head_indexed_by_batch(backend: str, rng: np.random.Generator) -> None:
    """[1, H, Lq, Lk] read as [B, 1, Lq, Lk], which no shape forbids where B = H."""
    subject = fresh("t5", rng, batch=4)
    part = subject.parts[0]

    def by_batch(query: np.ndarray, key: np.ndarray, pairs: Pairs) -> Ingredients:
        parameters = {"bias": subject.numbers()["0.bias"]}
        bias = INGREDIENTS["t5"](query, key, pairs, parameters, **part.settings).unscaled
        assert bias is not None
        return Ingredients(unscaled=np.swapaxes(bias, 0, 1))

    assert_right(subject, backend, attend_with(subject, by_batch))


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_a_float_mask_of_one_row_per_head_indexed_by_batch(backend: str, rng: np.random.Generator) -> None:
    """The same mistake with the caller's own bias."""
    mask = rng.normal(size=(1, 4, 6, 6))
    subject = fresh("none", rng, batch=4, attn_mask=mask)
    mistaken = attend_with(subject, lambda query, key, pairs: Ingredients(unscaled=np.swapaxes(mask, 0, 1)))
    assert_right(subject, backend, mistaken)


# --- buckets, slopes and rotations


def buckets_in_bf16(query_position: Tensor, key_position: Tensor) -> np.ndarray:
    """T5's 32 buckets up to 128, both directions, with every number of the way in bfloat16."""
    offset = key_position.bfloat16() - query_position.bfloat16().unsqueeze(-1)
    distance = offset.abs()
    logarithmic = 8 + (torch.log(distance.clamp(min=8.0) / 8.0) / math.log(16.0) * 8.0).long().clamp(max=7)
    return ((offset > 0) * 16 + torch.where(distance < 8, distance.long(), logarithmic)).numpy()


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_t5_buckets_in_bf16(backend: str, rng: np.random.Generator) -> None:
    """bfloat16 counts exactly to 256: at position 1000 it tells only every fourth key from its neighbours."""
    case = of(partial(t5, num_buckets=32, max_distance=128))
    start, first_key, keys = 1001, 971, 32
    setting = Setting(
        1, 4, 4, 3, keys, 6, 6, query_position=start, key_position=first_key, seed=int(rng.integers(2**32))
    )
    subject = make_subject(case, setting, "bfloat16")
    buckets = buckets_in_bf16(start + torch.arange(3), first_key + torch.arange(keys))
    bias = np.moveaxis(subject.numbers()["0.bias"][buckets], -1, 0)
    mistaken = attend_with(subject, lambda query, key, pairs: Ingredients(unscaled=bias))
    check(subject, backend, "bfloat16", gradients=False)
    truth = oracle_of(subject)
    rounding = max_error(numpy_of(subject.run(backend, return_lse=False)), truth)
    assert max_error(mistaken, truth) > 10 * rounding


ROUNDED: dict[str, tuple[int, Callable[[Tensor], np.ndarray]]] = {
    "the logarithm": (128, lambda offsets: buckets_in_bf16(torch.zeros(1), offsets)[0]),
    "the offset": (1000, lambda offsets: relative_position_bucket(offsets.bfloat16().long().numpy(), 32, 1000)),
}


@pytest.mark.parametrize("rounded", ROUNDED)
def test_t5_buckets_of_a_module_in_bf16(rounded: str) -> None:
    """Its parameters are bfloat16 and its buckets are exact; what rounds on the way to a bucket is not."""
    max_distance, mistaken = ROUNDED[rounded]
    offsets = torch.arange(-max_distance, max_distance + 1)
    truth = relative_position_bucket(offsets.numpy(), 32, max_distance)
    np.testing.assert_array_equal(T5Bias(1, max_distance=max_distance).bfloat16().buckets(offsets), truth)
    assert (mistaken(offsets) != truth).any()


def penalty(m: np.ndarray) -> Callable[..., Ingredients]:
    """-m |d| for the slopes m."""
    return lambda query, key, pairs: Ingredients(unscaled=-m[:, None, None] * np.abs(pairs.offset)[:, None])


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("heads", [3, 6, 12])
def test_alibi_slopes_for_head_counts_that_are_no_power_of_two(
    heads: int, backend: str, rng: np.random.Generator
) -> None:
    """The geometric sequence 2^(-8 h / n) for every n, where ALiBi takes slopes of the powers of two around n."""

    def geometric(n: int) -> np.ndarray:
        return 2.0 ** (-8.0 * np.arange(1, n + 1) / n)

    for power in (1, 2, 4, 8, 16):
        np.testing.assert_allclose(geometric(power), slopes(power), **CLOSE)
    subject = fresh(of(alibi), rng, num_heads=heads)
    assert_right(subject, backend, attend_with(subject, penalty(geometric(heads))))


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_alibi_without_the_absolute_value(backend: str, rng: np.random.Generator) -> None:
    """slope * d: under causality the same, without it a reward that grows with the distance into the future."""
    subject = fresh("alibi_4_heads", rng)
    m = slopes(4)
    mistaken = partial(
        attend_with,
        subject,
        lambda query, key, pairs: Ingredients(unscaled=m[:, None, None] * pairs.offset[:, None]),
    )
    np.testing.assert_allclose(mistaken(is_causal=True), oracle_of(subject, is_causal=True), **CLOSE)
    assert_right(subject, backend, mistaken())


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("name", ["kerple", "kerple_power"])
def test_kerple_without_the_future(name: str, backend: str, rng: np.random.Generator) -> None:
    """The lower triangle of the distances, as in the authors' causal code: without causality the future is near."""
    subject = fresh(name, rng)
    r1, r2 = (subject.numbers()[f"0.{one}"][:, None, None] for one in ("r1", "r2"))
    kind = subject.parts[0].settings["kind"]
    mistaken = partial(
        attend_with,
        subject,
        lambda query, key, pairs: Ingredients(unscaled=kernel(np.maximum(-pairs.offset, 0)[:, None], r1, r2, kind)),
    )
    np.testing.assert_allclose(mistaken(is_causal=True), oracle_of(subject, is_causal=True), **CLOSE)
    assert_right(subject, backend, mistaken())


SANDWICHES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "frequencies one later": lambda offset: np.cos(offset / 1e4 ** (np.arange(2, 10, 2) / 8)).sum(-1),
    "no cosine": lambda offset: (offset / 1e4 ** (np.arange(0, 8, 2) / 8)).sum(-1),
    "frequencies half as far apart": lambda offset: np.cos(offset / 1e4 ** (np.arange(4) / 8)).sum(-1),
}


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("mistake", SANDWICHES)
def test_other_sums_than_sandwich_s(mistake: str, backend: str, rng: np.random.Generator) -> None:
    """Each divided by the heads' ratios, as it should be. NeMo has frequencies one later, and had no cosine once."""
    subject = fresh(of(partial(sandwich, width=8)), rng)
    ratios = (2.0 * np.arange(1, 5))[:, None, None]

    def mistaken(query: np.ndarray, key: np.ndarray, pairs: Pairs) -> Ingredients:
        return Ingredients(unscaled=SANDWICHES[mistake](pairs.offset[:, None, :, :, None]) / ratios)

    assert_right(subject, backend, attend_with(subject, mistaken))


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_sandwich_with_alibi_s_slopes(backend: str, rng: np.random.Generator) -> None:
    """2^-c for a head's compression ratio c: ALiBi takes the power of the same list, Sandwich divides by it."""
    subject = fresh("sandwich", rng)

    def mistaken(query: np.ndarray, key: np.ndarray, pairs: Pairs) -> Ingredients:
        waves = np.cos(pairs.offset[:, None, :, :, None] / 1e4 ** (np.arange(3) / 3)).sum(-1)
        return Ingredients(unscaled=slopes(4)[:, None, None] * waves)

    assert_right(subject, backend, attend_with(subject, mistaken))


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_a_function_of_query_minus_key(backend: str, rng: np.random.Generator) -> None:
    """Swin-v2, RETURNN and others count i - j."""
    subject = fresh("function", rng)

    def mistaken(query: np.ndarray, key: np.ndarray, pairs: Pairs) -> Ingredients:
        own = {name.removeprefix("0."): array for name, array in subject.numbers().items() if name[:2] == "0."}
        return INGREDIENTS["function"](query, key, pairs._replace(offset=-pairs.offset), own)

    assert_right(subject, backend, attend_with(subject, mistaken))


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("name", ["rope", "rope_interleaved", "rope_partial"])
def test_ropes_two_layouts(name: str, backend: str, rng: np.random.Generator) -> None:
    """Neighbours turned as pairs, or one half against the other: a checkpoint of one layout means nothing in the other.

    Rotating two features only, the layouts are one.
    """
    subject = fresh(name, rng)
    part = subject.parts[0]
    other = part._replace(settings=part.settings | {"interleaved": not part.settings["interleaved"]})
    mistaken = oracle_of(replace(subject, parts=[other]))
    if name == "rope_partial":
        np.testing.assert_allclose(mistaken, oracle_of(subject), **CLOSE)
    else:
        assert_right(subject, backend, mistaken)


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_a_cache_of_sinusoids_keyed_without_the_base(backend: str, rng: np.random.Generator) -> None:
    """Encodings of one width and length but another base, used in turn: none may answer with another's angles."""
    seed = int(rng.integers(2**32))
    subjects = [
        make_subject(of(partial(rope, base=base)), Setting(2, 2, 2, 6, 6, 6, 6, seed=seed)) for base in (1e4, 50)
    ]
    for subject, other in (subjects, subjects[::-1], subjects):
        assert_right(subject, backend, oracle_of(other))


def test_a_cache_of_sinusoids_keyed_without_the_layout() -> None:
    """A KVCache keeps Transformer-XL's projected rows: for the module that made them, not for one that resembles it."""
    encodings = [TransformerXLEmbedding(2, 4, interleaved=interleaved).double() for interleaved in (False, True)]
    encodings[1].load_state_dict(encodings[0].state_dict())
    query, key = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 2, 5, 4).double()
    alone = Positions(ContiguousPositions(2), ContiguousPositions(0), 3, 5, query.device, highest=0)
    kept = replace(alone, memo=KVCache().kept_rows)

    def rows(encoding: TransformerXLEmbedding, positions: Positions) -> np.ndarray:
        table = encoding.terms(query, key, positions).relative_keys
        assert table is not None
        return table.values.numpy()

    with torch.no_grad():
        truths = [rows(encoding, alone) for encoding in encodings]
        for encoding, truth in zip(encodings * 2, truths * 2, strict=True):
            np.testing.assert_allclose(rows(encoding, kept), truth, **CLOSE)
    assert_told_apart(truths[0], truths[1])


# --- caches: a module, and the oracle between its projections


def attention_of(subject: Subject, backend: str) -> RelativeMultiheadAttention:
    """A module around the subject's encoding."""
    s = subject.setting
    module = RelativeMultiheadAttention(s.num_heads * s.head_dim, s.num_heads, subject.encoding(), backend=backend)
    return module.double().requires_grad_(False)


def through_cache(
    attention: RelativeMultiheadAttention, x: Tensor, chunks: list[int], cache: KVCache, key_mask: Tensor | None = None
) -> np.ndarray:
    """Causal self-attention over x, chunk by chunk."""
    outputs = []
    for chunk in x.split(chunks, dim=1):
        seen = cache.next_position + chunk.shape[1]
        mask = None if key_mask is None else key_mask[:, :seen]
        outputs.append(attention(chunk, is_causal=True, key_mask=mask, cache=cache))
    return torch.cat(outputs, dim=1).numpy()


def module_oracle(
    attention: RelativeMultiheadAttention,
    subject: Subject,
    x: Tensor,
    queries: slice = slice(None),
    keys: slice = slice(None),
    **setting: Any,
) -> np.ndarray:
    """The projections of x, the oracle on those queries and keys, the output's projection."""
    parts = {"query": (attention.q_proj, queries), "key": (attention.k_proj, keys), "value": (attention.v_proj, keys)}
    numbers = subject.numbers()
    for name, (projection, which) in parts.items():
        features = projection(x).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        numbers[name] = features[:, :, which].numpy()
    answer = replace(subject, setting=replace(subject.setting, **setting)).oracle(numbers)
    return attention.out_proj(torch.from_numpy(answer.output).transpose(1, 2).flatten(2)).numpy()


def decoding(
    name: str, length: int, backend: str, rng: np.random.Generator
) -> tuple[RelativeMultiheadAttention, Subject, Tensor]:
    """A module, the subject of its encoding in a causal setting, and a sequence."""
    subject = fresh(name, rng, query_length=length, key_length=length, is_causal=True)
    x = torch.from_numpy(rng.normal(size=(2, length, 24)))
    return attention_of(subject, backend), subject, x


every_encoding = pytest.mark.parametrize(
    ("name", "backend"), [(n, b) for n in ENCODINGS for b in BACKENDS], indirect=["backend"]
)


@every_encoding
def test_a_second_chunk_through_the_cache_that_forgets_its_start(
    name: str, backend: str, rng: np.random.Generator
) -> None:
    """Several tokens at once after a prompt: they stand behind it, and the first of them must not see the last."""
    attention, subject, x = decoding(name, 7, backend, rng)
    truth = module_oracle(attention, subject, x)
    np.testing.assert_allclose(through_cache(attention, x, [3, 4], KVCache()), truth, **CLOSE)
    second = slice(3, None)
    assert_told_apart(module_oracle(attention, subject, x, second, query_position=0), truth[:, second])
    # With the mask right and only the encoding at the wrong start, it is no better.
    triangle = np.tril(np.ones((1, 1, 4, 7), dtype=bool), 3)
    mistaken = module_oracle(attention, subject, x, second, query_position=0, is_causal=False, attn_mask=triangle)
    assert_told_apart(mistaken, truth[:, second])


@every_encoding
def test_a_cached_decode_without_the_bias(name: str, backend: str, rng: np.random.Generator) -> None:
    """One query needs no mask, and so it lost its bias as well."""
    attention, subject, x = decoding(name, 7, backend, rng)
    truth = module_oracle(attention, subject, x)
    np.testing.assert_allclose(through_cache(attention, x, [4, 1, 1, 1], KVCache()), truth, **CLOSE)
    last = slice(6, None)
    mistaken = module_oracle(attention, replace(subject, parts=[]), x, last, is_causal=False)
    assert_told_apart(mistaken, truth[:, last])


@every_encoding
def test_a_rolled_cache_that_takes_its_length_for_the_next_position(
    name: str, backend: str, rng: np.random.Generator
) -> None:
    """A cache that holds 4 of 8 positions: the next token is the ninth, not the fifth."""
    attention, subject, x = decoding(name, 8, backend, rng)
    cache = KVCache(max_length=4)
    truth = module_oracle(attention, subject, x, window=(3, 0))
    np.testing.assert_allclose(through_cache(attention, x, [5, 2, 1], cache), truth, **CLOSE)
    assert (cache.length, cache.next_position) == (4, 8)
    at = partial(module_oracle, attention, subject, x, slice(7, None), slice(4, None), key_position=4, is_causal=False)
    np.testing.assert_allclose(at(query_position=7), truth[:, 7:], **CLOSE)
    assert_told_apart(at(query_position=cache.length), truth[:, 7:])


# --- padding


PADDING = 2  # the second sequence is that much shorter, and padded on the left


def left_padded() -> np.ndarray:
    """True for the tokens of two sequences."""
    return np.arange(6) >= np.array([[0], [PADDING]])


@every_encoding
def test_left_padding(name: str, backend: str, rng: np.random.Generator) -> None:
    """A shorter sequence at the right end of its row: what it answers alone. The mask taken for a right one is not."""
    subject = fresh(name, rng, key_mask=left_padded(), is_causal=True)
    assert_right(subject, backend, oracle_of(subject, key_mask=left_padded()[:, ::-1]))
    output = numpy_of(subject.run(backend, return_lse=False))
    numbers = subject.numbers()
    own = numbers | {array: numbers[array][1:, :, PADDING:] for array in INPUTS}
    alone = replace(subject, setting=replace(subject.setting, key_mask=None)).oracle(own)
    np.testing.assert_allclose(output[1:, :, PADDING:], alone.output, **CLOSE)
    assert not output[1, :, :PADDING].any(), "a padding's own query has nothing to attend to"


@every_encoding
def test_left_padding_that_moves_the_queries_alone(name: str, backend: str, rng: np.random.Generator) -> None:
    """Positions counted from the first token: for queries and keys nothing changes, for the queries alone much does."""
    counted = np.arange(6) - np.array([[0], [PADDING]])
    masks = {"key_mask": left_padded(), "is_causal": True}
    subject = fresh(name, rng, query_position=counted, key_position=counted, **masks)
    np.testing.assert_allclose(oracle_of(subject, query_position=0, key_position=0), oracle_of(subject), **CLOSE)
    assert_right(subject, backend, oracle_of(subject, key_position=0))


@every_encoding
def test_left_padding_through_the_cache(name: str, backend: str, rng: np.random.Generator) -> None:
    """Every chunk sees the mask of all positions so far; a mask of the chunk's own keys leaves the padding in."""
    attention, subject, x = decoding(name, 6, backend, rng)
    kept = torch.from_numpy(left_padded())
    ours = through_cache(attention, x, [3, 2, 1], KVCache(), kept)
    alone = module_oracle(attention, subject, x[1:, PADDING:])
    np.testing.assert_allclose(ours[1:, PADDING:], alone, **CLOSE)
    forgotten = module_oracle(attention, subject, x)[1:, PADDING:]
    assert_told_apart(forgotten, alone)


# --- grids

ON_GRIDS = [backend for backend in TESTED_BACKENDS if backend != "sdpa"]


def on_a_wide_grid(name: str, rng: np.random.Generator, prefix_tokens: int = 0, **setting: Any) -> Subject:
    """2 rows of 4, behind so many tokens."""
    length = prefix_tokens + 8
    places = on_a_grid(("y", "x"), (2, 4), prefix_tokens, first=0, length=length)
    axes = {axis: (place, place) for axis, place in places.items()}
    return fresh(AXES_CASES[name], rng, query_length=length, key_length=length, axes=axes, **setting)


def with_parameter(subject: Subject, name: str, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The oracle's output for another table."""
    numbers = subject.numbers()
    return subject.oracle(numbers | {name: change(numbers[name])}).output


@pytest.mark.parametrize("backend", ON_GRIDS, indirect=True)
def test_beit_s_table_of_a_grid_that_is_not_square_reshaped_as_width_by_height(
    backend: str, rng: np.random.Generator
) -> None:
    """As transformers' `BeitRelativePositionBias` resizes it, even to its own grid; of a square grid nothing shows."""
    subject = on_a_wide_grid("beit", rng, prefix_tokens=1)

    def resized_as_there(table: np.ndarray) -> np.ndarray:
        config = BeitConfig(num_attention_heads=4, image_size=(4, 8), patch_size=2)
        peer = BeitRelativePositionBias(config).double()
        with torch.no_grad():
            peer.relative_position_bias_table.copy_(torch.from_numpy(table))
            per_pair = peer((2, 4))[0].permute(1, 2, 0).flatten(0, 1)
        rows = np.zeros_like(table)
        rows[peer.generate_relative_position_index((2, 4)).flatten().numpy()] = per_pair.numpy()
        return rows

    assert_right(subject, backend, with_parameter(subject, "0.bias", resized_as_there))
    encoding = subject.parts[0].module
    for interpolation in ("bicubic", "bilinear"):
        same = encoding.resized((2, 4), interpolation=interpolation)
        torch.testing.assert_close(same.bias, encoding.bias, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("backend", ON_GRIDS, indirect=True)
def test_a_table_of_rows_and_columns_exchanged(backend: str, rng: np.random.Generator) -> None:
    """(dx, dy) in the place of (dy, dx): of a square grid a table trained so works as well."""
    subject = on_a_wide_grid("swin", rng)
    mistaken = with_parameter(
        subject, "0.bias", lambda table: table.reshape(7, 3, -1).transpose(1, 0, 2).reshape(table.shape)
    )
    assert_right(subject, backend, mistaken)


@pytest.mark.parametrize("backend", ON_GRIDS, indirect=True)
def test_a_table_indexed_by_key_minus_query(backend: str, rng: np.random.Generator) -> None:
    """Swin and BEiT count query - key: the other way round every row is its mirror's."""
    subject = on_a_wide_grid("swin", rng)
    assert_right(subject, backend, with_parameter(subject, "0.bias", lambda table: table[::-1]))


@pytest.mark.parametrize("backend", ON_GRIDS, indirect=True)
def test_the_class_token_s_rows_exchanged(backend: str, rng: np.random.Generator) -> None:
    """First from the class token, then to it."""
    subject = on_a_wide_grid("beit", rng, prefix_tokens=1)
    order = [*range(21), 22, 21, 23]
    assert_right(subject, backend, with_parameter(subject, "0.bias", lambda table: table[order]))


@pytest.mark.parametrize("backend", ON_GRIDS, indirect=True)
@pytest.mark.parametrize("name", ["sam", "swin"])
def test_a_class_token_that_stands_on_the_first_cell(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = on_a_wide_grid(name, rng, prefix_tokens=1)
    axes = {
        axis: tuple(side._replace(prefix_tokens=0) for side in sides) for axis, sides in subject.setting.axes.items()
    }
    assert_right(subject, backend, oracle_of(subject, axes=axes))


@pytest.mark.parametrize("backend", ON_GRIDS, indirect=True)
def test_decomposed_terms_that_are_scaled(backend: str, rng: np.random.Generator) -> None:
    """SAM and MViTv2 scale q . k alone."""
    subject = on_a_wide_grid("sam", rng)
    numbers = subject.numbers()
    scaled = {n: array * 6**-0.5 if n.startswith("0.") else array for n, array in numbers.items()}
    assert_right(subject, backend, subject.oracle(scaled).output)


# --- dropout and gradients


def agreement_of_heads(dropped: Tensor) -> np.ndarray:
    """For every two heads the share of weights that both keep or both drop."""
    kept = (dropped != 0).transpose(0, 1).flatten(1)
    first, second = torch.triu_indices(len(kept), len(kept), offset=1)
    return (kept[first] == kept[second]).double().mean(dim=1).numpy()


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_dropout_reused_across_heads(backend: str, rng: np.random.Generator) -> None:
    """One mask for all heads drops the right share, and drops the same weights everywhere."""
    length, p = 24, 0.3
    case = CASES["shaw_keys_only"]
    setting = Setting(2, 4, 4, length, length, length, length, scale=0.1, seed=int(rng.integers(2**32)))
    subject = make_subject(case, setting)
    with torch.no_grad():
        subject.arrays["value"].copy_(torch.eye(length))
        weights = attention_weights(**subject.arguments())
        dropped = relative_attention(**subject.arguments(), dropout_p=p, backend=backend)
    np.testing.assert_allclose(weights, subject.oracle(subject.numbers()).weights, **CLOSE)
    np.testing.assert_allclose(dropped, weights * (dropped != 0) / (1.0 - p), **CLOSE)

    alike = p**2 + (1.0 - p) ** 2  # of two independent draws
    spread = 6.5 * math.sqrt(alike * (1.0 - alike) / (2 * length**2))  # 8e-11 of a normal distribution lies beyond
    assert (np.abs(agreement_of_heads(dropped) - alike) < spread).all()
    mistaken = weights * F.dropout(torch.ones(2, 1, length, length, dtype=torch.float64), p)
    assert (agreement_of_heads(mistaken) > alike + spread).all()


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("name", ["none", *ENCODINGS])
def test_a_fully_masked_row_that_gives_nan_gradients(name: str, backend: str, rng: np.random.Generator) -> None:
    """Zeroing the output of a softmax over -inf alone: 0 times NaN is NaN on the way back."""
    key_mask = np.array([[True, False, True], [False, False, False]])
    subject = fresh(name, rng, query_length=2, key_length=3, head_dim=2, value_dim=2, key_mask=key_mask)
    check(subject, backend, "float64")  # all gradients are the oracle's: finite, and zero where nothing is seen
    query, key, value = (subject.arrays[array] for array in INPUTS)
    allowed = torch.from_numpy(key_mask)[:, None, None]
    forbidden = torch.zeros(2, 1, 1, 3, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    scores = query @ key.transpose(-1, -2) * 2**-0.5 + forbidden
    mistaken = (scores.softmax(-1) @ value).masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    truth = attend_with(subject, lambda query, key, pairs: Ingredients(), key_mask=key_mask)
    np.testing.assert_allclose(numpy_of(mistaken), truth, **CLOSE)
    for gradient in torch.autograd.grad(mistaken.sum(), [query, key, value]):
        assert gradient[1].isnan().all()

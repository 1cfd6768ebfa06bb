"""RelativeMultiheadAttention: its constructor, its forward, and the cache after a forward that was refused."""

import copy
import pickle

import numpy as np
import pytest
import torch

from relattn import (
    AlibiBias,
    RelativeEmbedding,
    RotaryEmbedding,
    ScoreTerms,
    ShapeError,
    ShawEmbedding,
    T5Bias,
    UnsupportedError,
)
from relattn.checks.values import kind_of
from relattn.nn import KVCache, RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from tests.bad_input.refusal import ones, refused

NAN, INF = float("nan"), float("inf")
INPUTS = ("query", "key", "value")


def make(encoding=None, **changes) -> RelativeMultiheadAttention:
    return RelativeMultiheadAttention(**{"embed_dim": 32, "num_heads": 4, "encoding": encoding, **changes})


def forward(module=None, **changes):
    """Cross-attention of a query [2, 5, 32] to [2, 6, 32], but for `changes`."""
    good = {"query": ones(2, 5, 32), "key": ones(2, 6, 32), "value": ones(2, 6, 32)}
    return (module or make())(**{**good, **changes})


@pytest.mark.parametrize("name", ["embed_dim", "num_heads", "num_kv_heads", "head_dim", "kdim", "vdim"])
@pytest.mark.parametrize(
    "came", [0, -1, 1.5, 8.0, "4", True, NAN, [4], np.int64(0), np.bool_(True), torch.tensor(4)], ids=repr
)
def test_sizes(name, came):
    with refused(ValueError, f"{name}: got {came!r}; expected an int of at least 1"):
        make(**{name: came})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_heads": 5}, "num_heads: got 5 with embed_dim=32; expected a divisor of embed_dim, or give head_dim"),
        ({"num_kv_heads": 3}, "num_kv_heads: got 3 with num_heads=4; expected a divisor of num_heads"),
        ({"num_kv_heads": 8}, "num_kv_heads: got 8 with num_heads=4; expected a divisor of num_heads"),
        ({"backend": "fast"}, "backend: got 'fast'; expected one of 'auto', ..."),
        ({"backend": None}, "backend: got None; expected one of 'auto', ..."),
    ],
)
def test_constructor(changes, said):
    with refused(ValueError, said):
        make(**changes)


@pytest.mark.parametrize("came", [NAN, -0.1, 1.1, True, "0.1", None, torch.tensor(0.1)], ids=repr)
def test_dropout(came):
    with refused(ValueError, f"dropout: got {came!r}; expected a probability between 0 and 1"):
        make(dropout=came)


@pytest.mark.parametrize("came", [NAN, INF, True, "1", [1.0], torch.tensor(1.0)], ids=repr)
def test_scale(came):
    with refused(ValueError, f"scale: got {came!r}; expected a finite number, or None for 1/sqrt(width)"):
        make(scale=came)


@pytest.mark.parametrize("came", ["no", None, 1], ids=repr)
def test_flags(came):
    with refused(TypeError, f"bias: got {came!r}; expected True or False"):
        make(bias=came)
    with refused(TypeError, f"is_causal: got {came!r}; expected True or False"):
        forward(is_causal=came)


@pytest.mark.parametrize("came", ["rope", 1, AlibiBias, torch.nn.Linear(2, 2)], ids=str)
def test_no_encoding(came):
    with refused(TypeError, f"encoding: got {kind_of(came)}; expected a RelativeEncoding or None"):
        make(came)


def test_terms_for_one_call():
    said = (
        "encoding: got ScoreTerms; expected a RelativeEncoding or None; ScoreTerms fit one call: give them to "
        "relative_attention, or return them from `terms` of a RelativeEncoding of your own"
    )
    with refused(TypeError, said):
        make(ScoreTerms())


LAYERS = {"multi-head": make, "conformer": lambda: RelPositionMultiHeadedAttention(32, 4)}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cache"])
def test_weights(layer, cached):
    """torch.nn.MultiheadAttention's need_weights: False is what happens, True has another way."""
    module, cache, x = LAYERS[layer](), KVCache() if cached else None, ones(2, 5, 32)
    said = (
        "need_weights: got True; expected False, for the layer returns its output alone; relattn.attention_weights "
        "gives the weights for the same query, key and encoding, head by head"
    )
    with refused(UnsupportedError, said):
        module(x, cache=cache, need_weights=True)
    with refused(TypeError, "need_weights: got 1; expected True or False"):
        module(x, cache=cache, need_weights=1)
    assert cache is None or cache.length == 0
    expected = module(x)
    torch.testing.assert_close(module(x, cache=cache, need_weights=False), expected)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (AlibiBias(3), "AlibiBias num_heads: got 3; expected 4, the heads of query [2, 4, 5, 8]; make it..."),
        (T5Bias(8), "T5Bias num_heads: got 8; expected 4, the heads of query [2, 4, 5, 8]; make it..."),
        (ShawEmbedding(8, 3, num_heads=2), "relative_keys: got 2 heads ([2, 7, 8]); expected 4, the query's..."),
        (ShawEmbedding(32, 3), "relative_keys: got width 32 ([1, 7, 32]); expected 8..."),
        (RotaryEmbedding(32), "RotaryEmbedding head_dim: got 32; expected 8, the width of key [2, 4, 6, 8]..."),
    ],
)
def test_encoding_for_other_heads_or_width(encoding, said):
    with refused(ShapeError, said):
        forward(make(encoding))


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("came", ["x", 1, [[1.0]], np.ones((2, 5, 32), np.float32)], ids=repr)
def test_no_tensor(name, came):
    with refused(TypeError, f"{name}: got {kind_of(came)}; expected a tensor [batch, length, 32]"):
        forward(**{name: came})


def test_no_query():
    with refused(TypeError, "query: got NoneType; expected a tensor [batch, length, 32]"):
        forward(query=None)


@pytest.mark.parametrize(("name", "width"), [("query", 32), ("key", 24), ("value", 16)])
@pytest.mark.parametrize("size", [(), (5, 32), (2, 5, 31), (2, 4, 5, 8)], ids=str)
def test_shapes(name, width, size):
    inputs = {"query": ones(2, 5, 32), "key": ones(2, 6, 24), "value": ones(2, 6, 16), name: ones(*size)}
    with refused(ShapeError, f"{name}: got shape {list(size)}; expected a tensor [batch, length, {width}]"):
        make(kdim=24, vdim=16)(**inputs)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"query": ones(3, 5, 32)}, "key: got batch 2 ([2, 6, 32]) beside query [3, 5, 32]; expected the same"),
        ({"attn_mask": ones(5, 5)}, "attn_mask: got shape [5, 5]; expected one that broadcasts to [2, 4, 5, 6]..."),
        ({"key_mask": ones(2, 5, dtype=torch.bool)}, "key_mask: got shape [2, 5]; expected [2, 6] (batch, key length)"),
        (
            {"segment_ids": ones(2, 5, dtype=torch.long)},
            "segment_ids: got shape [2, 5] for the key side; expected [2, 6]...",
        ),
        ({"query_position": torch.arange(6)}, "query_position: got shape [6]; expected a start, [5] or [2, 5]"),
        ({"key_position": torch.arange(5)}, "key_position: got shape [5]; expected a start, [6] or [2, 6]"),
    ],
)
def test_sizes_of_the_call(changes, said):
    with refused(ShapeError, said):
        forward(**changes)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_dtypes(name, dtype):
    said = (
        f"{name}: got dtype {dtype}; expected torch.float32, that of the module's weights; convert the input with "
        ".to(torch.float32), or the module"
    )
    with refused(TypeError, said):
        forward(**{name: ones(2, 6, 32, dtype=dtype)})


@pytest.mark.parametrize(("made", "called"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str)
def test_float64_under_autocast(made, called):
    """Autocast narrows float32 and leaves float64 alone, on either side."""
    came = f"query: got dtype {called}; expected {made}, that of the module's weights"
    said = f"{came}; convert the input with .to({made}), or the module"
    with torch.autocast("cpu", torch.bfloat16), refused(TypeError, said):
        make().to(made)(ones(2, 5, 32, dtype=called))


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_no_floats(name, dtype):
    said = f"{name}: got dtype {dtype}; expected float64, float32, bfloat16 or float16; convert it with .to()"
    with refused(TypeError, said):
        forward(**{name: ones(2, 6, 32, dtype=dtype)})


@pytest.mark.parametrize("name", INPUTS)
def test_devices(name):
    said = f"{name}: got device meta; expected cpu, that of the module's weights; move one of them with .to()"
    with refused(ValueError, said):
        forward(**{name: ones(2, 6, 32, device="meta")})


def test_value_without_key():
    with refused(ValueError, "value: came without key; give key as well (value defaults to key, not the reverse)"):
        forward(key=None)


@pytest.mark.parametrize("came", ["x", 1, True, False, {}, [], (ones(1), ones(1)), KVCache], ids=str)
def test_no_cache(came):
    said = f"cache: got {kind_of(came)}; expected a KVCache or None; make one for each layer"
    with refused(TypeError, said):
        make()(ones(2, 5, 32), cache=came)


KEPT = "expected a boolean tensor, True where a key is kept; compare (mask != 0) to make one"
BESIDE_A_CACHE = {
    "key": (
        {"key": ones(2, 3, 32)},
        ValueError,
        "cache: came with key; leave key and value out: a cache brings the keys, for cross-attention that of "
        "remember(key, value)",
    ),
    "value": (
        {"key": ones(2, 3, 32), "value": ones(2, 3, 32)},
        ValueError,
        "cache: came with key; leave key and value out: a cache brings the keys, for cross-attention that of "
        "remember(key, value)",
    ),
    "query_position": (
        {"query_position": 5},
        ValueError,
        "query_position: got 5 with a cache, which counts on by itself; expected None, or the position of every "
        "new token, [3] or [2, 3]",
    ),
    "query_position, a start in a tensor": (
        {"query_position": torch.tensor(5)},
        ValueError,
        "query_position: got tensor(5) with a cache, which counts on by itself; expected None, or...",
    ),
    "query_position, of another length": (
        {"query_position": torch.arange(8)},
        ShapeError,
        "query_position: got shape [8] with a cache; expected the position of every new token, [3] or [2, 3]",
    ),
    "query_position, floats": (
        {"query_position": torch.zeros(3)},
        TypeError,
        "query_position: got dtype torch.float32; expected integer positions; convert with .long()",
    ),
    "key_position": (
        {"key_position": 0},
        ValueError,
        "key_position: came with a cache, which holds the positions of its keys; leave it out",
    ),
    "window": ({"window": 3}, ValueError, "window: got 3; expected (left, right)..."),
    "is_causal": ({"is_causal": "no"}, TypeError, "is_causal: got 'no'; expected True or False"),
    "key_mask, a list": ({"key_mask": [[True]]}, TypeError, f"key_mask: got list; {KEPT}"),
    "key_mask, floats": ({"key_mask": ones(2, 8)}, TypeError, f"key_mask: got torch.float32; {KEPT}"),
    "key_mask, of the new keys alone": (
        {"key_mask": ones(2, 3, dtype=torch.bool)},
        ShapeError,
        "key_mask: got shape [2, 3] with a cache; expected [batch, 8], a flag for every slot so far",
    ),
    "key_mask, of another batch": (
        {"key_mask": ones(3, 8, dtype=torch.bool)},
        ShapeError,
        "key_mask: got shape [3, 8]; expected [2, 8] (batch, key length)",
    ),
    "attn_mask, of the new keys alone": (
        {"attn_mask": ones(3, 3, dtype=torch.bool)},
        ShapeError,
        "attn_mask: got shape [3, 3] with a cache; expected a last axis of 8, every slot so far, or of 1",
    ),
    "attn_mask, integers": (
        {"attn_mask": ones(3, 8, dtype=torch.long)},
        TypeError,
        "attn_mask: got dtype torch.int64; expected bool...",
    ),
    "segment_ids, of the new keys alone": (
        {"segment_ids": ones(2, 3, dtype=torch.long)},
        ShapeError,
        "segment_ids: got shape [2, 3] for the key side with a cache; expected [batch, 8], an id for every slot so far",
    ),
    "segment_ids, a pair of the new keys alone": (
        {"segment_ids": (ones(2, 3, dtype=torch.long), ones(2, 3, dtype=torch.long))},
        ShapeError,
        "segment_ids: got shape [2, 3] for the key side with a cache; expected [batch, 8], an id for every slot so far",
    ),
    "segment_ids, floats": (
        {"segment_ids": ones(2, 8)},
        TypeError,
        "segment_ids: got torch.float32; expected an integer tensor [batch, length]",
    ),
    "another batch": (
        {"query": ones(3, 3, 32)},
        ShapeError,
        "key: got shape [3, 4, 3, 8]; expected batch, heads and width of [2, 4, 5, 8]...",
    ),
    "past the table": (
        {"query": ones(2, 5, 32)},
        ValueError,
        "RelativeEmbedding max_length: got visible offsets -9..0 and rows for -7..0; expected...make it with...",
    ),
}


@pytest.mark.parametrize("case", BESIDE_A_CACHE)
def test_a_refused_forward_leaves_the_cache_as_it_was(case):
    """The keys of a call that raised do not stay behind, to stand there twice when it is made again."""
    changes, error, said = BESIDE_A_CACHE[case]
    assert_untouched(make(RelativeEmbedding(8, 8, causal=True)), KVCache(), changes, error, said)


def test_a_refused_forward_leaves_a_rolling_cache_as_it_was():
    changes = {"attn_mask": ones(3, 3, dtype=torch.bool)}
    said = "attn_mask: got shape [3, 3] with a cache; expected a last axis of 8, every slot so far, or of 1"
    assert_untouched(make(), KVCache(max_length=4), changes, ShapeError, said)


def assert_untouched(module, cache, changes, error, said):
    """After a first chunk of 5, a refused one changes nothing: a good one gives the answer it would have given."""
    first, second = torch.randn(2, 5, 32), torch.randn(2, 3, 32)
    undisturbed = KVCache(cache.max_length)
    with torch.no_grad():
        for each in (cache, undisturbed):
            module(first, is_causal=True, cache=each)
        with refused(error, said):
            module(**{"query": second, "is_causal": True, "cache": cache, **changes})
        assert (cache.first_position, cache.next_position, cache.length) == (0, 5, 5)
        expected = module(second, is_causal=True, cache=undisturbed)
        assert torch.equal(module(second, is_causal=True, cache=cache), expected)


def test_a_refused_forward_does_not_claim_the_cache():
    cache = KVCache()
    said = "attn_mask: got shape [3, 3] with a cache; expected a last axis of 5, every slot so far, or of 1"
    with refused(ShapeError, said):
        make()(ones(2, 5, 32), attn_mask=ones(3, 3), cache=cache)
    make()(ones(2, 5, 32), cache=cache)
    assert cache.length == 5


def test_one_cache_for_two_layers():
    cache, x = KVCache(), ones(2, 3, 32)
    with torch.no_grad():
        y = make()(x, cache=cache)
    with refused(
        ValueError, "cache: got one that serves another layer; expected this layer's own; make one for each layer"
    ):
        make()(y, cache=cache)
    assert cache.length == 3
    for copied in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        make()(y, cache=copied)
        assert (copied.length, cache.length) == (6, 3)


def test_a_window_that_looks_ahead_in_a_rolling_cache():
    changes = {"window": (3, 2), "is_causal": False}
    said = (
        "window: got (3, 2) with a rolling cache (max_length=4), which sees nothing ahead; expected 0 on its right "
        "side; for a context on both sides take a KVCache() and its forget()"
    )
    assert_untouched(make(), KVCache(max_length=4), changes, ValueError, said)


def test_a_cache_of_another_encoding():
    """Whether the layer's was replaced, or a copy serves another layer; a sum of them, or None."""
    layer, x = make(RotaryEmbedding(8)), ones(2, 3, 32)
    cache = KVCache()
    with torch.no_grad():
        layer(x, cache=cache)
        copied, printed = copy.deepcopy(cache), repr(layer.encoding)
        make(RotaryEmbedding(8))(x, cache=copy.deepcopy(copied))
        for encoding in (AlibiBias(4), RotaryEmbedding(8) + AlibiBias(4), None):
            other = " ".join(repr(encoding).split())
            said = (
                f"cache: got keys prepared for the encoding {printed}; expected {other}, the layer's; start a new cache"
            )
            with refused(ValueError, said):
                make(encoding)(x, cache=copied)
            layer.encoding = encoding
            with refused(ValueError, said):
                layer(x, cache=cache)
            assert cache.length == copied.length == 3


def test_a_full_cache_of_another_layer():
    cache = make().remember(ones(2, 6, 32))
    with refused(
        ValueError, "cache: got one that serves another layer; expected this layer's own; make one for each layer"
    ):
        make()(ones(2, 1, 32), cache=cache)


def test_a_full_cache_of_another_batch():
    module = make()
    said = (
        "query: got batch 3 with a full cache of batch 2; expected the same; reorder repeats and drops rows of the "
        "cache"
    )
    with refused(ShapeError, said):
        module(ones(3, 1, 32), cache=module.remember(ones(2, 6, 32)))


BESIDE_A_FULL_CACHE = {
    "key": (
        {"key": ones(2, 6, 32)},
        ValueError,
        "cache: came with key; leave key and value out: a cache brings the keys, for cross-attention that of "
        "remember(key, value)",
    ),
    "key_position": (
        {"key_position": 0},
        ValueError,
        "key_position: came with a cache, which holds the positions of its keys; leave it out",
    ),
    "query_position": (
        {"query_position": torch.arange(2)},
        ShapeError,
        "query_position: got shape [2]; expected a start, [1] or [2, 1]",
    ),
    "key_mask": (
        {"key_mask": ones(2, 7, dtype=torch.bool)},
        ShapeError,
        "key_mask: got shape [2, 7] with a cache; expected [batch, 6], a flag for every slot so far",
    ),
    "past the table": (
        {"query_position": 8},
        ValueError,
        "RelativeEmbedding max_length: got visible offsets -8..-3 and rows for -7..0; expected...make it with...",
    ),
}


@pytest.mark.parametrize("case", BESIDE_A_FULL_CACHE)
def test_beside_a_full_cache(case):
    changes, error, said = BESIDE_A_FULL_CACHE[case]
    module = make(RelativeEmbedding(8, 8, causal=True))
    cache = module.remember(ones(2, 6, 32))
    with refused(error, said):
        module(ones(2, 1, 32), is_causal=True, cache=cache, **changes)
    assert cache.length == 6


def test_nothing_to_remember():
    with refused(TypeError, "key: got NoneType; expected a tensor [batch, length, 32]"):
        make().remember(None)
    with refused(ShapeError, "value: got shape [2, 5, 32] beside key [2, 6, 32]; expected the same batch and length"):
        make().remember(ones(2, 6, 32), ones(2, 5, 32))
    with refused(ShapeError, "key_position: got shape [5]; expected a start, [6] or [2, 6]"):
        make().remember(ones(2, 6, 32), key_position=torch.arange(5))


def test_positions_left_out_after_some_were_given():
    module, cache = make(), KVCache()
    module(ones(2, 3, 32), is_causal=True, cache=cache, query_position=torch.arange(3))
    said = (
        "query_position: got None after positions were given before; expected that of every new token, [1] or "
        "[2, 1]; the cache does not guess it"
    )
    with refused(ValueError, said):
        module(ones(2, 1, 32), is_causal=True, cache=cache)
    assert (cache.length, cache.next_position) == (3, 3)


@pytest.mark.parametrize("length", [4, 5, 7, 8])
def test_a_rolling_cache_cut_as_far_as_it_lets_itself_be_cut(length):
    """From every length that truncate accepts, decoding goes on as a full pass under the window does."""
    module, first, then = make(), torch.randn(2, 8, 32), torch.randn(2, 3, 32)
    cache = KVCache(max_length=4)
    with torch.no_grad():
        module(first[:, :4], cache=cache)
        module(first[:, 4:], cache=cache)
        cache.truncate(length)
        whole = module(torch.cat([first[:, :length], then], dim=1), window=(3, 0))
        assert torch.allclose(module(then, cache=cache), whole[:, length:], atol=1e-6)


def test_batches_that_differ():
    attention = RelativeMultiheadAttention(32, 4)
    with refused(ShapeError, "key: got batch 3 ([3, 5, 32]) beside query [2, 5, 32]; expected the same"):
        attention(torch.randn(2, 5, 32), torch.randn(3, 5, 32))
    with refused(ShapeError, "value: got shape [2, 6, 32] beside key [2, 5, 32]; expected the same batch and length"):
        attention(torch.randn(2, 5, 32), torch.randn(2, 5, 32), torch.randn(2, 6, 32))


@pytest.mark.parametrize("kind", [RelativeMultiheadAttention, RelPositionMultiHeadedAttention])
@pytest.mark.parametrize("method", ["forward", "remember"])
def test_an_unknown_keyword_names_the_public_class(kind, method):
    """Both inherit their methods from one class, which nobody calls by its name."""
    with refused(TypeError, f"{kind.__name__}.{method}() got an unexpected keyword argument 'mask'"):
        getattr(kind(32, 4), method)(ones(2, 5, 32), mask=None)


def test_methods_of_a_subclass_and_of_a_class_before_it_stay():
    class Own(RelativeMultiheadAttention):
        def forward(self, query):
            return "own"

    class Before:
        def remember(self, key):
            return "before"

    class Both(Before, RelativeMultiheadAttention):
        """Says nothing of forward."""

    assert Own(32, 4)(ones(2, 5, 32)) == "own"
    assert Both(32, 4).remember(ones(2, 5, 32)) == "before"
    assert Both(32, 4)(ones(2, 5, 32)).shape == (2, 5, 32)

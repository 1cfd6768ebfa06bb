"""transformers 5.23: `LlamaRotaryEmbedding`, `apply_rotary_pos_emb` and `LlamaAttention` beside ours.

Its features turn in halves (interleaved=False). Its `rope_parameters` less `rope_theta`, which is base, is scaling;
rope_type "default" is scaling=None. `attention_scaling`, of YaRN, multiplies its cosines and sines as it does ours. Its
angles are float32: `compare` has it compute them in float64 where we are held to it.

What it offers and the paper does not: "truncate", the rounding of YaRN's published code, and that code's ramp, which is
linear in the pair's index where the paper's is linear in its rotations. ramp="rotations", the paper's, is held
to the oracle (tests/test_offsets.py); `test_the_paper_s_ramp_is_another` shows that Llama's attention has it nowhere.

"dynamic" and "longrope" depend on the length of the call, the largest of its positions + 1. The original length is 16
here, and the starts lead below it, up to it and beyond. "dynamic" has no original length among its `rope_parameters`:
theirs is the config's max_position_embeddings. It also remembers: `test_dynamic_remembers_longer_texts` shows where we
differ.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama import modeling_llama as llama
from transformers.models.phi3 import modeling_phi3 as phi3

from relattn import RotaryEmbedding, relative_attention
from relattn.nn import KVCache, RelativeMultiheadAttention
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, KV_HEADS, LENGTH, HEAD_DIM, WIDTH = 2, 4, 2, 11, 16, 24
LENGTHS = {"original_max_position_embeddings": 32}
SHORT = {"original_max_position_embeddings": 16}
LISTS = {
    "short_factor": [1.0, 1.0, 1.25, 1.5, 1.5, 2.0, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0, 12.0, 16.0],
}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, **LENGTHS},
    "yarn, not truncated": {"rope_type": "yarn", "factor": 4.0, "truncate": False, "beta_fast": 4, **LENGTHS},
    "yarn, its own temperature": {
        "rope_type": "yarn", "factor": 8.0, "attention_factor": 0.7, "beta_fast": 8.0, "beta_slow": 0.25, **LENGTHS,
    },
    "yarn, far longer": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LENGTHS},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, **SHORT},
    "longrope": {"rope_type": "longrope", **LISTS, "factor": 8.0, **SHORT},
    "longrope, its own temperature": {"rope_type": "longrope", **LISTS, "attention_factor": 1.25, **SHORT},
}  # fmt: skip
STARTS = {"at 0": 0, "at 5": 5, "at 6": 6, "at 1000": 1000}
"""At 5 the last of 11 positions is the 16th."""
BY_LENGTH = ["dynamic", "longrope", "longrope, its own temperature"]
every_scaling = pytest.mark.parametrize("name", SCALINGS)


def config(name: str) -> LlamaConfig:
    parameters = {"rope_theta": 500.0, **(SCALINGS[name] or {"rope_type": "default"})}
    longest = parameters.pop("original_max_position_embeddings") if name == "dynamic" else 4096
    return LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        max_position_embeddings=longest, rope_parameters=parameters, attn_implementation="eager",
    )  # fmt: skip


def rotary(scaling: dict[str, Any] | None) -> RotaryEmbedding:
    return RotaryEmbedding(HEAD_DIM, base=500.0, scaling=scaling)


def their_angles(name: str, features: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Their cosines and sines in the dtype of the features, for every row of the batch."""
    places = torch.arange(start, start + LENGTH).expand(B, -1)
    return llama.LlamaRotaryEmbedding(config(name))(features, places)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@every_scaling
def test_rotated_features(name: str, start: int, rng) -> None:
    """Queries turn like keys."""

    def peer(a: dict[str, Tensor]) -> Tensor:
        return llama.apply_rotary_pos_emb(a["key"], a["key"], *their_angles(name, a["key"], start))[0]

    def ours(a: dict[str, Tensor]) -> Tensor:
        return rotary(SCALINGS[name]).prepare_keys(a["key"], ContiguousPositions(start))

    assert_same_numbers(ours, peer, {"key": torch.randn(B, KV_HEADS, LENGTH, HEAD_DIM)}, terms=2)


def attention_arrays() -> dict[str, Tensor]:
    """A LlamaAttention's parameters, whose names but one are ours, and its input."""
    shapes = {"q": (HEADS * HEAD_DIM, WIDTH), "k": (KV_HEADS * HEAD_DIM, WIDTH), "v": (KV_HEADS * HEAD_DIM, WIDTH)}
    weights = {f"{one}_proj.weight": torch.randn(shape) / 4 for one, shape in shapes.items()}
    return {**weights, "o_proj.weight": torch.randn(WIDTH, HEADS * HEAD_DIM), "x": torch.randn(B, LENGTH, WIDTH)}


def their_attention(name: str, a: dict[str, Tensor], kept: Tensor, start: int = 0) -> Tensor:
    """LlamaAttention with the additive mask of causality and padding that its model makes."""
    module = llama.LlamaAttention(config(name), layer_idx=0)
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & kept[:, None, None]
    mask = torch.where(allowed, 0.0, torch.finfo(a["x"].dtype).min).to(a["x"].dtype)
    weights = {one: array for one, array in a.items() if one != "x"}
    return functional_call(module, weights, (a["x"], their_angles(name, a["x"], start), mask))[0]


def our_attention(scaling: dict[str, Any] | None, a: dict[str, Tensor], kept: Tensor, start: int = 0) -> Tensor:
    module = RelativeMultiheadAttention(
        WIDTH, HEADS, rotary(scaling), num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, bias=False
    )
    weights = {one.replace("o_proj", "out_proj"): array for one, array in a.items() if one != "x"}
    call = {"is_causal": True, "key_mask": kept, "query_position": start, "key_position": start}
    return functional_call(module, weights, (a["x"],), call)


def kept_keys(padded: int) -> Tensor:
    kept = torch.ones(B, LENGTH, dtype=torch.bool)
    kept[1, LENGTH - padded :] = False
    return kept


TERMS = longest_sum(B, LENGTH, LENGTH, WIDTH, HEAD_DIM)


@pytest.mark.one_in(10)
@pytest.mark.parametrize("padded", [0, 4])
@every_scaling
def test_whole_attention(name: str, padded: int, rng) -> None:
    """Grouped queries, causal, padded on the right; the scale is 1 / sqrt(head_dim) under every scaling."""
    kept = kept_keys(padded)

    def peer(a: dict[str, Tensor]) -> Tensor:
        return their_attention(name, a, kept, start=5)

    def ours(a: dict[str, Tensor]) -> Tensor:
        return our_attention(SCALINGS[name], a, kept, start=5)

    assert_same_numbers(ours, peer, attention_arrays(), TERMS)


def test_the_paper_s_ramp_is_another(rng) -> None:
    """transformers computes the ramp of YaRN's published code and not that of its paper."""
    scaling = {**SCALINGS["yarn, far longer"], "ramp": "rotations"}

    def peer(a: dict[str, Tensor]) -> Tensor:
        return their_attention("yarn, far longer", a, kept_keys(0), start=500)

    def ours(a: dict[str, Tensor]) -> Tensor:
        return our_attention(scaling, a, kept_keys(0), start=500)

    with pytest.raises(AssertionError, match=r"\(float64\).*exceeds the budget"):
        assert_same_numbers(ours, peer, attention_arrays(), TERMS)


@pytest.mark.parametrize("start", [0, 5, 6, 40])
def test_phi3(start: int, rng) -> None:
    """Phi-3 keeps the original length beside its rope_parameters; the ratio of its two lengths is factor."""
    parameters = {"rope_type": "longrope", "rope_theta": 500.0, **LISTS}
    config = Phi3Config(
        hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, original_max_position_embeddings=16,
        max_position_embeddings=64, rope_parameters=parameters, pad_token_id=0,
    )  # fmt: skip
    scaling = {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 16, "factor": 64 / 16}

    def peer(a: dict[str, Tensor]) -> Tensor:
        places = torch.arange(start, start + LENGTH).expand(B, -1)
        waves = phi3.Phi3RotaryEmbedding(config)(a["key"], places)
        return phi3.apply_rotary_pos_emb(a["key"], a["key"], *waves)[0]

    def ours(a: dict[str, Tensor]) -> Tensor:
        return rotary(scaling).prepare_keys(a["key"], ContiguousPositions(start))

    assert_same_numbers(ours, peer, {"key": torch.randn(B, KV_HEADS, LENGTH, HEAD_DIM)}, terms=2)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("given", ["starts", "starts as tensors", "explicit"])
@pytest.mark.parametrize("name", BY_LENGTH)
def test_decoding_through_a_cache(name: str, given: str, rng) -> None:
    """A prompt of 11, a chunk that crosses the original length, then single tokens: older keys stay as they were."""
    steps = [(0, 11), (11, 18), (18, 19), (19, 20)]

    def peer(a: dict[str, Tensor]) -> Tensor:
        module, keys, values, outputs = llama.LlamaAttention(config(name), layer_idx=0), [], [], []
        turn = llama.LlamaRotaryEmbedding(config(name))  # one for the whole text: it remembers lengths
        for first, stop in steps:
            x, places = a["x"][:, first:stop], torch.arange(first, stop).expand(B, -1)
            q, k, v = ((x @ a[f"{one}_proj.weight"].T).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for one in "qkv")
            q, k = llama.apply_rotary_pos_emb(q, k, *turn(x, places))
            keys.append(k)
            values.append(v)
            held = torch.cat(keys, dim=2), torch.cat(values, dim=2)
            mask = torch.zeros(stop - first, stop, dtype=x.dtype)
            mask.masked_fill_(torch.arange(stop) > torch.arange(first, stop)[:, None], torch.finfo(x.dtype).min)
            out = llama.eager_attention_forward(module.eval(), q, *held, mask[None, None], scaling=HEAD_DIM**-0.5)[0]
            outputs.append(out.flatten(2) @ a["o_proj.weight"].T)
        return torch.cat(outputs, dim=1)

    def ours(a: dict[str, Tensor]) -> Tensor:
        module, cache, outputs = RelativeMultiheadAttention(
            WIDTH, HEADS, rotary(SCALINGS[name]), num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, bias=False
        ), KVCache(), []  # fmt: skip
        weights = {one.replace("o_proj", "out_proj"): array for one, array in a.items() if one != "x"}
        for first, stop in steps:
            call: dict[str, Any] = {"is_causal": True, "cache": cache}
            if given == "explicit":
                call["query_position"] = torch.arange(first, stop).expand(B, -1)
            outputs.append(functional_call(module, weights, (a["x"][:, first:stop],), call))
        return torch.cat(outputs, dim=1)

    def ours_by_hand(a: dict[str, Tensor]) -> Tensor:
        """Keys prepared by hand, and every start a tensor."""
        encoding, keys, values, outputs = rotary(SCALINGS[name]), [], [], []
        for first, stop in steps:
            x = a["x"][:, first:stop]
            q, k, v = ((x @ a[f"{one}_proj.weight"].T).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for one in "qkv")
            keys.append(encoding.prepare_keys(k, ContiguousPositions(torch.tensor(first))))
            values.append(v)
            held = torch.cat(keys, dim=2), torch.cat(values, dim=2)
            terms = encoding.terms(
                q,
                held[0],
                Positions(
                    ContiguousPositions(torch.tensor(first)),
                    ContiguousPositions(torch.tensor(0)),
                    stop - first,
                    stop,
                    x.device,
                ),
            )
            start = torch.tensor(first)
            out = relative_attention(
                q, *held, is_causal=True, enable_gqa=True, encoding=terms, query_position=start,
                key_position=torch.tensor(0),
            )  # fmt: skip
            outputs.append(out.transpose(1, 2).flatten(2) @ a["o_proj.weight"].T)
        return torch.cat(outputs, dim=1)

    arrays = attention_arrays() | {"x": torch.randn(B, 20, WIDTH)}
    chosen = ours_by_hand if given == "starts as tensors" else ours
    assert_same_numbers(chosen, peer, arrays, longest_sum(B, 20, 20, WIDTH, HEAD_DIM))


def test_dynamic_remembers_longer_texts(rng) -> None:
    """After a text of 40 theirs turns one of 20 by the frequencies of 40, until one below 16 makes it forget."""
    turn, key = llama.LlamaRotaryEmbedding(config("dynamic")), torch.randn(1, 1, 20, HEAD_DIM)
    ours = rotary(SCALINGS["dynamic"]).prepare_keys(key, ContiguousPositions(0))

    def theirs(length: int) -> Tensor:
        waves = turn(key, torch.arange(length)[None])
        return llama.apply_rotary_pos_emb(key[:, :, :length], key[:, :, :length], *waves)[0]

    torch.testing.assert_close(theirs(20), ours)
    turn(key, torch.arange(40)[None])
    assert (theirs(20) - ours).abs().max() > 0.1
    theirs(8)
    torch.testing.assert_close(theirs(20), ours)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_LENGTH)
def test_compiled_with_starts_as_tensors(name: str, rng) -> None:
    """One graph, and one compilation, below and beyond the original length."""
    encoding, key = rotary(SCALINGS[name]), torch.randn(B, HEADS, LENGTH, HEAD_DIM)
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def attend(start: Tensor) -> Tensor:
        return relative_attention(key, key, key, encoding=encoding, query_position=start, key_position=start)

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend=count)
    for start in (0, 5, 6, 500):
        torch.testing.assert_close(compiled(torch.tensor(start)), attend(torch.tensor(start)), rtol=0, atol=1e-6)
    assert len(graphs) == 1

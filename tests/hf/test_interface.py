"""attn_implementation="relattn" where nothing is replaced: masks as structure, and what is refused."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers import masking_utils

import relattn.hf
from relattn import UnsupportedError
from relattn.api import attention_weights
from relattn.equation import visible_blocks
from relattn.hf import MaskStructure, interface
from relattn.hf.mask_functions import relattn_mask
from tests import seeds
from tests.bad_input.refusal import refused

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SIZES, "intermediate_size": 24, "num_key_value_heads": 2, "pad_token_id": 0}
LLAMA4 = {
    **DECODER, "intermediate_size_mlp": 24, "head_dim": 4, "attention_chunk_size": 4, "num_local_experts": 2,
    "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0],
}  # fmt: skip
MODELS: dict[str, Any] = {
    "llama": lambda **how: hf.LlamaForCausalLM._from_config(hf.LlamaConfig(**DECODER), **how),
    "mistral": lambda **how: hf.MistralForCausalLM._from_config(hf.MistralConfig(**DECODER, sliding_window=3), **how),
    "llama4": lambda **how: hf.Llama4ForCausalLM._from_config(hf.Llama4TextConfig(**LLAMA4), **how),
    "bert": lambda **how: hf.BertModel._from_config(hf.BertConfig(**SIZES, intermediate_size=24), **how),
}


def made(name: str, implementation: str) -> Any:
    seeds.start_torch(0)
    return MODELS[name](attn_implementation=implementation).eval()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What relative_attention is called with."""
    calls: list[dict[str, Any]] = []
    original = interface.relative_attention
    monkeypatch.setattr(interface, "relative_attention", lambda *a, **k: calls.append(k) or original(*a, **k))
    return calls


def run(name: str, **inputs: Tensor) -> tuple[Tensor, Tensor]:
    """(ours, sdpa's) first output."""
    with torch.no_grad():
        ours, theirs = (made(name, implementation)(**inputs)[0] for implementation in ("relattn", "sdpa"))
    return ours, theirs


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pads", [(0, 0), (0, 4), (3, 0)], ids=["whole", "right", "left"])
def test_a_batch(name: str, pads: tuple[int, int], seen: list[dict[str, Any]]) -> None:
    """No mask of pairs anywhere."""
    tokens, mask = torch.randint(1, 40, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, : pads[0]] = 0
    mask[0, 9 - pads[1] :] = 0
    ours, theirs = run(name, input_ids=tokens, attention_mask=mask)
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=1e-4, atol=1e-5)
    assert len(seen) == 2
    assert all(call["attn_mask"] is None for call in seen)
    assert all((call["key_mask"] is None) == (pads == (0, 0)) for call in seen)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_packed_sequences(name: str, seen: list[dict[str, Any]]) -> None:
    """Positions that start again: attention stays inside of a sequence."""
    tokens, positions = torch.randint(1, 40, (1, 9)), torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
    ours, theirs = run(name, input_ids=tokens, position_ids=positions, use_cache=False)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert all(call["segment_ids"] is not None and call["attn_mask"] is None for call in seen)


@pytest.mark.parametrize("masked", ["padding", "packed"])
def test_the_layers_of_a_model_share_what_blocks_see(masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found once per forward pass, with a new mask each time."""
    found: list[torch.Size] = []
    for name in ("_of_keys", "_of_ids"):
        whole = getattr(visible_blocks, name)
        monkeypatch.setattr(visible_blocks, name, lambda mask, whole=whole: found.append(mask.shape) or whole(mask))
    tokens, place = torch.randint(1, 40, (2, 192)), torch.arange(192).expand(2, -1)
    inputs = {"attention_mask": (place >= 60).long()} if masked == "padding" else {"position_ids": place % 70}
    model, plain = (made("llama", "sdpa") for _ in range(2))
    relattn.hf.patch(model, backend="native")
    for count in (1, 2):
        ours = model(input_ids=tokens, use_cache=False, **inputs)[0]
        assert len(found) == count
    theirs = plain(input_ids=tokens, use_cache=False, **inputs)[0]
    real = inputs.get("attention_mask", torch.ones_like(tokens)).bool()
    torch.testing.assert_close(ours[real], theirs[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(name: str, cache: str) -> None:
    prompt = torch.randint(1, 40, (2, 7))
    how = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
    ours, theirs = (made(name, one).generate(prompt, **how) for one in ("relattn", "sdpa"))
    assert torch.equal(ours, theirs)


def test_a_mask_of_pairs_that_the_caller_wrote() -> None:
    """Boolean, True attends; or float, added."""
    tokens, pairs = torch.randint(1, 40, (2, 6)), torch.rand(2, 1, 6, 6) < 0.5
    pairs |= torch.eye(6, dtype=torch.bool)
    for mask in (pairs, torch.zeros(2, 1, 6, 6).masked_fill(~pairs, torch.finfo(torch.float32).min)):
        torch.testing.assert_close(*run("bert", input_ids=tokens, attention_mask=mask), rtol=1e-4, atol=1e-5)


def test_sides_of_windows() -> None:
    """transformers' window of 3 holds the query and two before it, or three on either side."""
    past = relattn_mask(1, 5, 5, mask_function=masking_utils.sliding_window_causal_mask_function(3))
    both = relattn_mask(1, 5, 5, mask_function=masking_utils.sliding_window_bidirectional_mask_function(3))
    assert (past.is_causal, past.window) == (True, (2, None))
    assert (both.is_causal, both.window) == (False, (3, 3))


def test_tokens_beyond_the_attention_mask_are_padding() -> None:
    """A static cache has room that no token has filled yet."""
    mask = relattn_mask(1, 1, 5, q_offset=2, attention_mask=torch.tensor([[False, True, True]]))
    assert mask.key_mask is not None
    assert mask.key_mask.tolist() == [[False, True, True, False, False]]
    assert mask.query_position == 2


def test_no_padding_is_no_key_mask() -> None:
    assert relattn_mask(1, 3, 3, attention_mask=torch.ones(1, 3, dtype=torch.bool)) == MaskStructure(is_causal=True)


def allowed(mask: MaskStructure, queries: int, keys: int) -> Tensor:
    """[B, queries, keys]: which pairs the structure lets attend."""
    held = [*(mask.segment_ids or ()), mask.key_mask, mask.attn_mask]
    batch = max((len(tensor) for tensor in held if tensor is not None), default=1)
    query, key = torch.zeros(batch, 1, queries, 4), torch.zeros(batch, 1, keys, 4)
    return attention_weights(query, key, key, **mask.keywords())[:, 0] > 0


def theirs(queries: int, keys: int, mask_function: Any, **more: Any) -> Tensor:
    """The same by transformers."""
    batch = len(more["attention_mask"]) if "attention_mask" in more else 1
    made = masking_utils.sdpa_mask(
        batch, queries, keys, mask_function=mask_function, allow_is_causal_skip=False, **more
    )
    assert made is not None
    return made[:, 0]


@pytest.mark.parametrize("size", [1, 3, 4, 9])
@pytest.mark.parametrize(("queries", "q_offset", "kv_offset"), [(9, 0, 0), (2, 7, 0), (1, 8, 0), (3, 6, 4)])
@pytest.mark.parametrize("left", [0, 2, 5])
def test_chunks(size: int, queries: int, q_offset: int, kv_offset: int, left: int) -> None:
    """Llama 4: whole, through caches, and counted from the first real token; exact where a query is no padding."""
    keys = 9 - kv_offset
    attention_mask = torch.ones(2, 9, dtype=torch.bool)
    attention_mask[1, :left] = False
    chunks = masking_utils.chunked_causal_mask_function(size, torch.tensor([0, left]))
    places = {"q_offset": q_offset, "kv_offset": kv_offset, "attention_mask": attention_mask}
    mask = relattn_mask(2, queries, keys, mask_function=chunks, **places)
    assert mask.attn_mask is None and (mask.segment_ids is None) == (size == 9)
    found = allowed(mask, queries, keys).expand(2, -1, -1)
    real = attention_mask[:, q_offset : q_offset + queries]
    assert torch.equal(found[real], theirs(queries, keys, chunks, **places)[real])


@pytest.mark.parametrize("pads", [0, 2])
@pytest.mark.parametrize("vmap", [False, True])
def test_a_mask_function_that_has_no_name(pads: int, vmap: bool) -> None:
    """The pairs are written down, as for sdpa; what the caller keeps out stays out."""
    attention_mask = torch.ones(2, 5, dtype=torch.bool)
    attention_mask[1, :pads] = False

    def every_other(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key) % 2 == 0

    function = masking_utils.and_masks(every_other, masking_utils.causal_mask_function)
    places = {"attention_mask": attention_mask, "use_vmap": vmap}
    mask = relattn_mask(2, 5, 5, mask_function=function, **places)
    assert mask.attn_mask is not None and mask.attn_mask.shape == (2, 1, 5, 5) and not mask.is_causal
    assert (mask.key_mask is None) == (pads == 0), "the real tokens are told, too, for ALiBi that counts them"
    assert mask.key_mask is None or torch.equal(mask.key_mask, attention_mask)
    assert torch.equal(allowed(mask, 5, 5), theirs(5, 5, function, **places))


@pytest.mark.since("5.10", "no attribute 'blockwise_overlay'")
def test_images_in_a_text() -> None:
    """Tokens of one image see each other; where there is no image, the mask is causal, and says so."""
    without = torch.full((1, 6), -1)
    image = torch.tensor([[-1, 0, 0, 0, -1, -1]])
    functions = [
        masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.blockwise_overlay(ids))
        for ids in (without, image)
    ]
    assert relattn_mask(1, 6, 6, mask_function=functions[0]) == MaskStructure(is_causal=True)
    mask = relattn_mask(1, 6, 6, mask_function=functions[1])
    assert torch.equal(allowed(mask, 6, 6), theirs(6, 6, functions[1]))
    within = masking_utils.and_masks(functions[0], masking_utils.sliding_window_overlay(3))
    assert relattn_mask(1, 6, 6, mask_function=within) == MaskStructure(is_causal=True, window=(2, None))


def test_two_kinds_of_segments() -> None:
    """Packed sequences with chunks of their own have no structure here: pairs."""
    packed, positions = torch.tensor([[0, 0, 0, 0, 1, 1]]), torch.tensor([[0, 1, 2, 3, 0, 1]])
    chunks = masking_utils.chunked_causal_mask_function(3, torch.zeros(1, dtype=torch.long))
    function = masking_utils.and_masks(
        masking_utils.packed_sequence_mask_function(packed),
        getattr(masking_utils, "remap_positions_for_packed_sequence", lambda each, _: each)(chunks, positions),
    )
    mask = relattn_mask(1, 6, 6, mask_function=function)
    assert mask.attn_mask is not None
    assert torch.equal(allowed(mask, 6, 6), theirs(6, 6, function))


def test_mask_functions_of_another_module() -> None:
    """A maker of the same name elsewhere may mean something else."""

    def sliding_window_overlay(sliding_window: int) -> Any:
        return lambda batch, head, query, key: (query - key).abs() < sliding_window

    function = sliding_window_overlay(2)
    mask = relattn_mask(1, 5, 5, mask_function=function)
    assert torch.equal(allowed(mask, 5, 5), theirs(5, 5, function))


@pytest.mark.since("5.22", "create_chunked_causal_mask.* got an unexpected keyword argument 'block_sequence_ids'")
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_model_with_chunks(cache: str, seen: list[dict[str, Any]]) -> None:
    """Llama 4 beyond its chunks, in one pass and by generation."""
    tokens, mask = torch.randint(1, 40, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    mask[0, :3] = 0
    ours, theirs = run("llama4", input_ids=tokens, attention_mask=mask)
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=1e-4, atol=1e-5)
    assert all(call["attn_mask"] is None for call in seen)
    assert {call["segment_ids"] is None for call in seen} == {True, False}
    how = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
    first, second = (made("llama4", one).generate(tokens, attention_mask=mask, **how) for one in ("relattn", "sdpa"))
    assert torch.equal(first, second)


def test_attention_that_calls_no_interface() -> None:
    """BLOOM adds its mask to the scores itself."""
    config = hf.BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=4)
    model = hf.BloomModel._from_config(config, attn_implementation="relattn")
    with refused(
        UnsupportedError,
        "attn_implementation='relattn': attention that calls no interface got a mask without pairs, and calls add on "
        "it; load the model without the name and call relattn.hf.patch",
    ):
        model(torch.randint(3, 40, (1, 5)))


def test_models_of_one_configuration() -> None:
    """`patch` writes the name into a configuration of the model's own; the other computes as before."""
    config = hf.BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=4)
    one, other = hf.BloomModel(config), hf.BloomModel(config)
    tokens = torch.randint(3, 40, (1, 5))
    expected = other(tokens)[0]
    relattn.hf.patch(one)
    assert one.config is not config and one.config._attn_implementation == "relattn"
    assert config._attn_implementation == "eager"
    torch.testing.assert_close(other(tokens)[0], expected, rtol=0, atol=0)


def test_weights_of_capped_scores_and_sinks() -> None:
    """They sum to less than 1, and give the output."""
    query, config = torch.randn(1, 2, 3, 4), type("Config", (), {"output_attentions": True})
    module = torch.nn.Module()
    module.config = config
    terms = {"softcap": 0.5, "s_aux": torch.randn(2)}
    output, weights = interface.relattn_attention(module, query, query, query, None, **terms)
    assert weights is not None and weights.sum(-1).max() < 1.0
    torch.testing.assert_close(output.transpose(1, 2), weights @ query)


def test_weights_are_returned_where_they_are_asked_for() -> None:
    tokens = torch.randint(1, 40, (2, 6))
    with torch.no_grad():
        ours, eager = (made("llama", one)(tokens, output_attentions=True).attentions for one in ("relattn", "eager"))
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.since("5.18", "T5EncoderModel does not support an attention implementation")
def test_t5_without_patch_is_right_and_quadratic(seen: list[dict[str, Any]]) -> None:
    """attn_implementation alone: the model's own position bias comes as a matrix, and is added."""
    config = hf.T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4)
    seeds.start_torch(0)
    model = hf.T5EncoderModel._from_config(config, attn_implementation="sdpa").eval()
    tokens = torch.randint(1, 40, (2, 9))
    with torch.no_grad():
        theirs = model(tokens)[0]
        model.set_attn_implementation("relattn")
        torch.testing.assert_close(model(tokens)[0], theirs, rtol=1e-4, atol=1e-5)
    assert [call["attn_mask"].shape for call in seen] == [(1, 4, 9, 9)] * 2


def test_the_backend_of_patch_runs() -> None:
    """It is named, and a name that cannot is refused when the model is patched."""
    model = made("llama", "sdpa")
    with refused(ValueError, "backend: got 'fast'; expected one of..."):
        relattn.hf.patch(model, backend="fast")
    with relattn.hf.patched(model, backend="sdpa") as report, torch.no_grad():
        assert set(report.changed.values()) == {"LlamaAttention with attn_implementation='relattn'"}
        model(torch.randint(1, 40, (2, 6)))

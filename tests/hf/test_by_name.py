"""Whole models without a replacement: their attention goes to relattn by its name, or stays as it was."""

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import relattn.hf
from relattn import UnsupportedError
from relattn.hf.decide import MASKS_OF_ITS_OWN
from tests import seeds
from tests.bad_input.refusal import refused
from tests.peers.cases.case import drawn
from tests.peers.compare import everything_in_float64

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "num_key_value_heads": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GEMMA = {**SIZES, **LAYERS, **TOKENS, "head_dim": 4}
GEMMA_3N = {"intermediate_size": 4 * [24], "vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 4,
            "laurel_rank": 4, "activation_sparsity_pattern": None}  # fmt: skip
GEMMA_4 = {"global_head_dim": 4, "vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 4}
SHARED = {"num_hidden_layers": 4, "layer_types": 2 * LAYERS["layer_types"], "num_kv_shared_layers": 2}
NEWEST = pytest.mark.since("5.10", "no attribute Gemma4")
NUMBERS = [
    "2",
    "3n",
    *(pytest.param(number, marks=NEWEST) for number in ("4", "4 with shared keys", "4 unified with shared keys")),
]
LENGTH = 11


def gemma(number: str) -> nn.Module:
    made = {
        "2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GEMMA, attn_logit_softcapping=2.0)),
        "3n": lambda: hf.Gemma3nForCausalLM(hf.Gemma3nTextConfig(**{**GEMMA, **GEMMA_3N, **SHARED})),
        "4": lambda: hf.Gemma4ForCausalLM(hf.Gemma4TextConfig(**GEMMA, **GEMMA_4)),
        "4 with shared keys": lambda: hf.Gemma4ForCausalLM(hf.Gemma4TextConfig(**{**GEMMA, **GEMMA_4, **SHARED})),
        "4 unified with shared keys": lambda: hf.Gemma4UnifiedForCausalLM(
            hf.Gemma4UnifiedTextConfig(**{**GEMMA, **GEMMA_4, **SHARED})
        ),
    }
    seeds.start_torch(0)
    model = made[number]()
    model.set_attn_implementation("eager")
    return drawn(model)


def prompt() -> dict[str, torch.Tensor]:
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :3] = 0
    return {"input_ids": torch.randint(3, 40, (2, LENGTH)), "attention_mask": mask}


def assert_the_same(model: Any, twin: Any, **inputs: torch.Tensor) -> None:
    with torch.no_grad():
        ours, theirs = (one(**inputs)[0] for one in (twin, model))
    kept = inputs.get("attention_mask", torch.ones(ours.shape[:2])).bool()
    torch.testing.assert_close(ours[kept], theirs[kept], rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", NUMBERS)
def test_gemma(number: str) -> None:
    """Caps, windows, keys shared by heads; with the audio's own attention in the same file."""
    with everything_in_float64():
        model, inputs = gemma(number).double(), prompt()
        twin = copy.deepcopy(model)
        report = relattn.hf.patch(twin)
        assert len(report.changed) >= 2 and not report.left and not report.remains
        assert_the_same(model, twin, **inputs)


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("number", NUMBERS[3:])
def test_the_last_logits(number: str, keep: int) -> None:
    """Layers that share keys are asked of the last tokens alone, under masks of these."""
    model, inputs = gemma(number), prompt()
    inputs["attention_mask"] = inputs["attention_mask"].flip(0)
    twin = copy.deepcopy(model)
    relattn.hf.patch(twin)
    with torch.no_grad():
        found, expected = (one(**inputs, logits_to_keep=keep)[0] for one in (twin, model))
    assert found.shape[1] == keep
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
@pytest.mark.parametrize("number", NUMBERS)
def test_gemma_generates(number: str, cache: str | None) -> None:
    model, inputs = gemma(number), prompt()
    how = {"max_new_tokens": 6, "do_sample": False, "disable_compile": True}
    how |= {"use_cache": False} if cache is None else {"cache_implementation": cache}
    expected = model.generate(**inputs, **how)
    relattn.hf.patch(model)
    assert torch.equal(model.generate(**inputs, **how), expected)


ENCODERS = ["BertLMHeadModel", "BertGenerationDecoder", "CamembertForCausalLM", "Data2VecTextForCausalLM",
            "ElectraForCausalLM", "ErnieForCausalLM", "RoCBertForCausalLM", "RobertaForCausalLM",
            "RobertaPreLayerNormForCausalLM", "XLMRobertaForCausalLM", "XLMRobertaXLForCausalLM"]  # fmt: skip


@pytest.mark.one_in(9)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_that_generate_with_a_static_cache(name: str, padded: bool) -> None:
    """`generate` makes a causal mask ahead, of which an encoder asks the shape as of a mask of tokens.

    transformers 5.23: without padding "sdpa" gets none, and lets tokens attend to the room that no token has filled;
    "eager" gets one always.
    """
    kind = getattr(hf, name.replace("BertLMHeadModel", "BertLMHeadModel"))
    seeds.start_torch(0)
    model = drawn(kind(kind.config_class(**SIZES, **TOKENS, max_position_embeddings=64)))
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[1, :2] = int(not padded)
    prompt = {"inputs": torch.randint(3, 40, (2, 5)), "attention_mask": mask}
    how = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    model.set_attn_implementation("eager")
    expected = model.generate(**prompt, **how)
    relattn.hf.patch(model)
    assert torch.equal(model.generate(**prompt, **how), expected)


def test_a_pooling_head_of_torch() -> None:
    """SigLIP's: no mask reaches it, so what is around it can be changed."""
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    model = drawn(hf.SiglipVisionModel(hf.SiglipVisionConfig(**sizes, image_size=8, patch_size=2)))
    twin = copy.deepcopy(model)
    report = relattn.hf.patch(twin)
    assert set(report.changed.values()) == {"SiglipAttention with attn_implementation='relattn'"}
    assert [name.removeprefix("vision_model.") for name in report.left] == ["head.attention"]
    assert_the_same(model, twin, pixel_values=torch.randn(2, 3, 8, 8))


def sparse(kind: str) -> nn.Module:
    latent = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
    made = {
        "DeepseekV32": lambda: hf.DeepseekV32Model(
            hf.DeepseekV32Config(**SIZES, **TOKENS, **latent, num_key_value_heads=4, mlp_layer_types=["dense"] * 2)
        ),
        "Doge": lambda: hf.DogeModel(hf.DogeConfig(**SIZES, **TOKENS)),
    }
    return made[kind]()


@pytest.mark.parametrize(
    "kind", [pytest.param("DeepseekV32", marks=pytest.mark.since("5.18", "no attribute DeepseekV32")), "Doge"]
)
def test_attention_that_chooses_its_keys(kind: str) -> None:
    """Its mask of pairs is no structure."""
    with refused(
        UnsupportedError,
        f"model: relattn can change no attention of {kind}Model ({kind}Attention works on a mask of queries x keys); "
        "it is as it was",
    ):
        relattn.hf.patch(sparse(kind))


def test_images_that_see_all_of_themselves() -> None:
    """PaliGemma: the prefix in both directions, the rest causal; pairs where there is a prefix."""
    config = hf.PaliGemmaConfig(
        text_config=hf.GemmaConfig(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=4),
        vision_config=hf.SiglipVisionConfig(**SIZES, image_size=8, patch_size=4, vision_use_head=False),
        image_token_id=39, projection_dim=16,
    )  # fmt: skip
    seeds.start_torch(0)
    model = drawn(hf.PaliGemmaForConditionalGeneration(config))
    twin = copy.deepcopy(model)
    relattn.hf.patch(twin)
    tokens = torch.randint(3, 39, (2, LENGTH))
    tokens[:, :4] = 39
    types = (torch.arange(LENGTH) >= 6).long().expand(2, -1)
    inputs = {"pixel_values": torch.randn(2, 3, 8, 8), "input_ids": tokens, "token_type_ids": types}
    assert_the_same(model, twin, **inputs)


def test_the_report_names_models_that_ask_for_masks_of_their_own() -> None:
    """Gemma 3 lets the patches of an image see each other; Llama asks for causality and padding alone."""
    config = hf.Gemma3TextConfig(**{**SIZES, **LAYERS, **TOKENS, "head_dim": 4})
    reports = [
        relattn.hf.patch(hf.Gemma3ForCausalLM(config)),
        relattn.hf.patch(hf.LlamaModel(hf.LlamaConfig(**SIZES, num_key_value_heads=2))),
    ]
    said = "; where its model asks for a mask of its own form, the pairs are written down"
    assert [all(how.endswith(said) for how in report.changed.values()) for report in reports] == [True, False]


def test_code_that_asks_for_a_mask_of_its_own() -> None:
    """As an argument, and as an entry of a mapping that is handed over, as in Step 3.7 and in older versions."""
    asking = ("f(or_mask_function=one)", 'given["or_mask_function"] = one', '{"and_mask_function": one}')
    assert all(MASKS_OF_ITS_OWN.search(code) for code in (*asking, "f(block_sequence_ids=ids)"))
    assert not MASKS_OF_ITS_OWN.search("self.padded_and_mask_function(features)")

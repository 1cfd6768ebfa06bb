"""Faults of transformers 5.23 that its models do not have with relattn in their attention, and uses of a patched one.

Each fault is shown on the original first, so that the day it is mended is seen here.
"""

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

import relattn.hf
from tests import seeds
from tests.peers.cases import CASES, made
from tests.peers.cases.case import BATCH, HEADS, LENGTH, VOCABULARY, WIDTH, padding
from tests.peers.cases.deberta import BOTH, DEBERTA

TOLERANCE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}


def ids(length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def patched_copy(model: Any) -> Any:
    twin = copy.deepcopy(model)
    relattn.hf.patch(twin)
    return twin


# --- faults of the originals ---


def test_t5_with_flex_attention_reads_its_bias_by_batch() -> None:
    """position_bias is [1, H, Lq, Lk] and flex_attention indexes it by batch: from the second on, beyond."""
    model = made("t5").encoder
    tokens = ids()
    with torch.no_grad():
        expected = model(tokens)[0]
        torch.testing.assert_close(patched_copy(model)(tokens)[0], expected, **TOLERANCE)
        model.config._attn_implementation_internal = "flex_attention"
        with torch.compiler.set_stance("force_eager"), pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            model(tokens)


@pytest.mark.parametrize("queries", [5, 14])
def test_deberta_v2_with_other_queries_than_keys(queries: int) -> None:
    """The original's position to content term takes its rows for as many queries as keys, and the sum does not fit.

    Ours equals the formula, pair by pair, with DeBERTa-v2's own buckets.
    """
    model = made("deberta_v3")
    attention, rows = model.encoder.layer[0].attention.self, model.encoder.get_rel_embedding()
    hidden, query_states = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, queries, WIDTH)
    everything = torch.ones(BATCH, 1, queries, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        with pytest.raises(RuntimeError):
            attention(hidden, everything, query_states=query_states, rel_embeddings=rows)
        expected = disentangled(attention, hidden, query_states, rows)
        relattn.hf.patch(model)
        found = attention(hidden, everything, query_states=query_states, rel_embeddings=rows)[0]
    torch.testing.assert_close(found, expected, **TOLERANCE)


def disentangled(attention: Any, hidden: Tensor, query_states: Tensor, rows: Tensor) -> Tensor:
    """softmax((q_i . k_j + q_i . K[delta] + Q[delta] . k_j) / sqrt(3 D)) v_j, all pairs written out."""

    def heads(features: Tensor) -> Tensor:
        return features.unflatten(-1, (HEADS, -1)).transpose(-2, -3)

    query, key, value = (
        heads(projection(features))
        for projection, features in (
            (attention.query_proj, query_states), (attention.key_proj, hidden), (attention.value_proj, hidden)
        )
    )  # fmt: skip
    offsets = build_relative_position(query, key, attention.position_buckets, attention.max_relative_positions)[0]
    delta = (offsets + attention.pos_ebd_size).clamp(0, 2 * attention.pos_ebd_size - 1)
    position_keys, position_queries = (heads(p(rows))[:, delta] for p in (attention.key_proj, attention.query_proj))
    scores = torch.einsum("bhid,bhjd->bhij", query, key)
    scores += torch.einsum("bhid,hijd->bhij", query, position_keys)
    scores += torch.einsum("hijd,bhjd->bhij", position_queries, key)
    weights = (scores / (3 * query.shape[-1]) ** 0.5).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2)


def test_deberta_under_autocast() -> None:
    """DeBERTa fills hidden scores with float32's lowest number, which bfloat16 cannot hold."""
    model = made("deberta")
    tokens = ids()
    twin = patched_copy(model)
    with torch.no_grad():
        expected = model(tokens)[0]
        with torch.autocast("cpu", torch.bfloat16):
            with pytest.raises(RuntimeError, match="without overflow"):
                model(tokens)
            found = twin(tokens)[0]
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)


# --- ways to use a patched model ---


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["t5", "mt5", "umt5", "longt5_transient_global", "bloom", "mpt"])
def test_layers_checkpointed_with_reentry(name: str) -> None:
    """use_reentrant=True makes whatever a layer returns its own output, a shared position bias among it.

    In float64: in float32 rounding alone reaches 1e-5 of the largest gradient of such a model.
    """
    model = made(name, use_cache=False).double()
    plain, twin = gradients(patched_copy(model), name), patched_copy(model).train()
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for setting in ("dropout", "hidden_dropout", "attn_dropout_p"):
            if isinstance(getattr(module, setting, None), float):
                setattr(module, setting, 0.0)
    twin.gradient_checkpointing_enable({"use_reentrant": True})
    twin.enable_input_require_grads()
    again = gradients(twin, name)
    assert plain.keys() == again.keys()
    for key, expected in plain.items():
        largest = expected.abs().max().item()  # sums round by their terms, not by what is left of them
        torch.testing.assert_close(again[key], expected, rtol=0.0, atol=1e-12 * largest, msg=key)


def gradients(model: Any, name: str) -> dict[str, Tensor]:
    """Of every parameter, from the same inputs."""
    seeds.start_torch(1)
    inputs = CASES[name].inputs(LENGTH)
    CASES[name].output(model(**inputs), inputs).square().sum().backward()
    return {key: p.grad for key, p in model.named_parameters() if p.grad is not None}


class Adapter(nn.Module):
    """A linear layer with a low-rank change beside it, as adapters wrap them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapt(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, Adapter(child))
        else:
            adapt(child)


@pytest.mark.one_in(24)
@pytest.mark.parametrize("name", [*(name for name in CASES if not name.startswith("wavlm")), "llama"])
def test_projections_wrapped_by_adapters(name: str) -> None:
    """WavLM itself fails with them: it hands the weights of its projections to PyTorch, and calls none."""
    if name == "llama":
        config = hf.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
            intermediate_size=24,
        )  # fmt: skip
        model, changes = hf.LlamaForCausalLM(config).eval(), 2
        inputs = {"input_ids": ids()}
    else:
        model, changes, inputs = made(name), CASES[name].replaced, CASES[name].inputs(LENGTH)
    adapt(model)
    twin = copy.deepcopy(model)
    report = relattn.hf.patch(twin)
    assert len(report.changed) >= changes and not report.left
    with torch.no_grad():
        ours, theirs = (one(**{key: x.clone() for key, x in inputs.items()})[0] for one in (twin, model))
    real = padding(LENGTH).bool() if "attention_mask" in inputs and ours.shape[1] == LENGTH else slice(None)
    torch.testing.assert_close(ours[real], theirs[real], **TOLERANCE)


def test_attention_of_its_own_beside_attention_that_can_be_named() -> None:
    """RemBERT's layers do not ask which attention their configuration names, and take a mask; those of a BERT do."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS,
             "intermediate_size": 24}  # fmt: skip
    decoder = hf.BertLMHeadModel(hf.BertConfig(**sizes, is_decoder=True, add_cross_attention=True))
    model = hf.EncoderDecoderModel(encoder=hf.RemBertModel(hf.RemBertConfig(**sizes)), decoder=decoder).eval()
    tokens = {"input_ids": ids(), "attention_mask": padding(LENGTH), "decoder_input_ids": ids(5)}
    with torch.no_grad():
        expected = model(**tokens)[0]
        report = relattn.hf.patch(model)
        torch.testing.assert_close(model(**tokens)[0], expected, **TOLERANCE)
    assert len(report.changed) == 2 and model.decoder.bert.config._attn_implementation == "relattn"
    assert report.left == {
        "encoder.encoder.layer.0.attention.self": "RemBertSelfAttention takes no attn_implementation, and relattn has "
        "no replacement"
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "umt5", "bloom"])
def test_a_smaller_model_drafts(name: str) -> None:
    """Assisted decoding gives the model's own greedy tokens."""
    model, draft = made(name), made(name)
    prompt = ids()[:1]
    how = {"max_new_tokens": 8, "do_sample": False}
    expected = model.generate(prompt, **how)
    assert torch.equal(patched_copy(model).generate(prompt, assistant_model=patched_copy(draft), **how), expected)
    assert torch.equal(patched_copy(model).generate(prompt, prompt_lookup_num_tokens=3, **how), expected)


@pytest.mark.slow
def test_a_compiled_encoder() -> None:
    model = made("t5").encoder
    tokens = ids()
    with torch.no_grad():
        expected = model(tokens)[0]
        compiled = torch.compile(patched_copy(model), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(tokens)[0], expected, **TOLERANCE)


def test_saved_patched_loaded_plain(tmp_path: Any) -> None:
    """The configuration that is saved says nothing of relattn, and either way of loading gives the same numbers."""
    model = made("t5")
    patched_copy(model).save_pretrained(tmp_path)
    assert "relattn" not in (tmp_path / "config.json").read_text()
    inputs = {"input_ids": ids(), "decoder_input_ids": ids(5)}
    with torch.no_grad():
        expected = model(**inputs).logits
        for how in ({}, {"attn_implementation": "relattn"}):
            again = hf.T5ForConditionalGeneration.from_pretrained(tmp_path, **how).eval()
            torch.testing.assert_close(again(**inputs).logits, expected, **TOLERANCE)


def test_deberta_s_heads() -> None:
    """The model for masked words, whole."""
    settings = {"position_buckets": 6, "max_relative_positions": 8, "share_att_key": True, "pos_att_type": BOTH}
    model = hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**DEBERTA, **settings)).eval()
    tokens, mask = ids(), padding(LENGTH)
    with torch.no_grad():
        theirs, ours = (one(tokens, attention_mask=mask).logits[mask.bool()] for one in (model, patched_copy(model)))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)

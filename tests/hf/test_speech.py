"""Speech models whole: streams through a cache, chunks, real subsampling, and what transformers records of them."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import Phi4MultimodalAudioModel

import relattn.hf
from relattn.hf.chunks import Chunks
from relattn.hf.names import CACHE
from tests.peers.cases import CASES, made
from tests.peers.cases.case import BATCH, HEADS, LENGTH, TEXT, VOCABULARY, WIDTH, drawn
from tests.peers.cases.conformer import seamless
from tests.peers.cases.fastspeech2_conformer import SIZES
from tests.peers.cases.granite_speech import granite_speech5, masked
from tests.peers.cases.parakeet import ENCODER, MELS, features
from tests.peers.cases.phi4_multimodal import SIZES as PHI4

TOLERANCE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}
SUBSAMPLING = {"subsampling_factor": 4, "subsampling_conv_stride": 2, "num_mel_bins": 8}
STREAMING = "nemotron_asr_streaming"


def patched_copy(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    relattn.hf.patch(twin, strict=True)
    return twin


def assert_same(model: nn.Module, output: str, real: Any = slice(None), **inputs: Any) -> None:
    with torch.no_grad():
        theirs, ours = (getattr(one(**inputs), output) for one in (model, patched_copy(model)))
    torch.testing.assert_close(ours[real], theirs[real], **TOLERANCE)


# --- chunks ---


@pytest.mark.parametrize("left", [None, 0, 1, 2])
@pytest.mark.parametrize(("cached", "new", "first"), [(0, 11, 0), (5, 3, 0), (4, 7, 9)])
def test_the_pairs_of_chunks(left: int | None, cached: int, new: int, first: int) -> None:
    """Pair by pair, by the numbers of the chunks; and the queries that see padding alone."""
    real = torch.rand(BATCH, cached + new) < 0.3
    chunks = Chunks(
        query_position=first + cached, key_position=first, key_mask=real, size=3, left=left, lengths=(new, cached + new)
    )
    number = (first + torch.arange(cached + new)) // 3
    apart = number[cached:, None] - number
    pairs = (apart >= 0) & (apart <= (1000 if left is None else left)) & real[:, None]
    query, key = torch.randn(BATCH, HEADS, new, 4), torch.randn(BATCH, HEADS, cached + new, 4)
    found = relattn.relative_attention(query, key, key, **chunks.keywords())
    torch.testing.assert_close(found, relattn.relative_attention(query, key, key, attn_mask=pairs[:, None]))
    hidden = chunks.queries_without_keys()
    assert hidden is not None
    assert torch.equal(hidden, ~pairs.any(dim=2))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("left", [-1, 0, 2])
def test_seamless_in_chunks(left: int, masked: bool) -> None:
    """All chunks before, or none, or two; each frame's own rows count from itself."""
    chunks = {"speech_encoder_chunk_size": 3, "speech_encoder_left_chunk_num": left}
    case = seamless("v2", "relative_key", left_max_position_embeddings=4, right_max_position_embeddings=2, **chunks)
    model, inputs = drawn(case.make(LENGTH)), case.inputs(LENGTH)
    real = inputs["attention_mask"] if masked else slice(None)
    inputs = inputs if masked else {"hidden_states": inputs["hidden_states"]}
    with torch.no_grad():
        theirs, ours = (one(**inputs)[real] for one in (model, patched_copy(model)))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


# --- a stream ---


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("lookahead", [0, 2])
@pytest.mark.parametrize("lengths", [(3, 3, 3, 3, 3), (6, 3, 9)])
def test_a_stream(lookahead: int, lengths: tuple[int, ...], padded: bool) -> None:
    """Chunk by chunk through the caches, past the window, as the original.

    transformers counts a mask from the first frame of the stream on, so that what comes later is padding: all of it is
    compared, for frames that see nothing are left out of the convolutions.
    """
    model = made(STREAMING)
    speech = torch.randn(BATCH, sum(lengths), MELS)
    found: list[list[Tensor]] = []
    for one in (model, patched_copy(model)):
        cache, outputs = {CACHE: None, "padding_cache": None}, []
        for chunk in speech.split(lengths, dim=1):
            mask = torch.ones(BATCH, chunk.shape[1], dtype=torch.bool)
            mask[0, -1] = False
            how = {"attention_mask": mask} if padded else {}
            with torch.no_grad():
                output = one(chunk, use_cache=True, num_lookahead_tokens=lookahead, **how, **cache)
            cache = {name: getattr(output, name) for name in cache}
            outputs.append(output.last_hidden_state)
        found.append(outputs)
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_a_stream_is_the_whole() -> None:
    """What is read in chunks of the lookahead's size is what is read at once."""
    twin, speech = patched_copy(made(STREAMING)), torch.randn(BATCH, 12, MELS)
    cache, outputs = {CACHE: None, "padding_cache": None}, []
    with torch.no_grad():
        for chunk in speech.split(3, dim=1):
            output = twin(chunk, use_cache=True, **cache)
            cache = {name: getattr(output, name) for name in cache}
            outputs.append(output.last_hidden_state)
        torch.testing.assert_close(torch.cat(outputs, dim=1), twin(speech).last_hidden_state, **TOLERANCE)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_stream_s_eager_attention_hides_what_attends(implementation: str) -> None:
    """transformers 5.23: eager masks are numbers, 0 for a pair that attends, of which the model takes `not`."""
    model, speech = made(STREAMING), torch.randn(BATCH, LENGTH, MELS)
    twin = patched_copy(model)
    model.config._attn_implementation_internal = implementation
    with torch.no_grad():
        theirs, ours = model(speech).last_hidden_state, twin(speech).last_hidden_state
        weights = twin(speech, output_attentions=True).attentions
    assert torch.allclose(ours, theirs, **TOLERANCE) == (implementation == "sdpa")
    number = torch.arange(LENGTH) // 3
    hidden = (number[:, None] < number) | (number[:, None] > number + 1)
    assert len(weights) == 2
    assert all((one[:, :, hidden] == 0.0).all() and (one[:, :, ~hidden] > 0.0).all() for one in weights)


# --- whole models ---


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("length", [1, 16, 37])
def test_parakeet_of_subsampled_features(length: int, padded: bool) -> None:
    model = drawn(hf.ParakeetEncoder(hf.ParakeetEncoderConfig(**{**ENCODER, **SUBSAMPLING})))
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[0, max(length - 10, 1) :] = 0
    inputs = {"input_features": torch.randn(BATCH, length, 8), **({"attention_mask": mask} if padded else {})}
    real = model(**inputs).attention_mask.bool() if padded else slice(None)
    assert_same(model, "last_hidden_state", real, **inputs)


def test_parakeet_learns_with_its_own_loss() -> None:
    encoder = {**ENCODER, **SUBSAMPLING, "dropout": 0.0, "layerdrop": 0.0}
    config = hf.ParakeetCTCConfig(vocab_size=VOCABULARY, pad_token_id=0, encoder_config=encoder)
    model = drawn(hf.ParakeetForCTC(config))
    inputs = {"input_features": torch.randn(BATCH, 40, 8), "attention_mask": torch.ones(BATCH, 40, dtype=torch.long)}
    inputs["attention_mask"][0, 28:] = 0
    inputs["labels"] = torch.randint(1, VOCABULARY, (BATCH, 3))
    found = []
    for one in (model, patched_copy(model)):
        loss = one(**inputs).loss
        loss.backward()
        found.append({"loss": loss.detach(), **{name: p.grad for name, p in one.named_parameters()}})
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=1e-3, atol=1e-4, msg=name)


def test_a_layer_that_is_left_out() -> None:
    """layerdrop draws as many numbers as in the original, so that a seed leaves out the same layers."""
    model = made("parakeet").train()
    model.dropout, model.layerdrop = 0.0, 0.5
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    inputs, twin = features(LENGTH), patched_copy(model)
    real, outputs = inputs["attention_mask"], []
    for seed in range(5):
        both = []
        for one in (model, twin):
            torch.manual_seed(seed)
            both.append(one(**inputs).last_hidden_state[real])
        torch.testing.assert_close(*both, **TOLERANCE)
        outputs.append(both[0])
    assert not all(torch.equal(outputs[0], one) for one in outputs)


@pytest.mark.parametrize("name", ["parakeet", STREAMING])
def test_what_is_recorded_of_a_model(name: str) -> None:
    """transformers keeps what is to be recorded by the name of the class."""
    model, inputs = made(name), CASES[name].inputs(LENGTH)
    twin = patched_copy(model)
    with torch.no_grad():
        theirs, ours = (one(**inputs, output_hidden_states=True) for one in (model, twin))
        assert len(twin(**inputs, output_attentions=True).attentions) == 2
        assert twin(**inputs, output_attentions=True, output_attention_mask=False).attention_mask is None
    assert len(ours.hidden_states) == len(theirs.hidden_states) == 3
    for one, other in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(one[inputs["attention_mask"]], other[inputs["attention_mask"]], **TOLERANCE)


@pytest.mark.parametrize("name", ["parakeet", STREAMING])
def test_saved_under_its_own_name(name: str, tmp_path: Path) -> None:
    """A patched encoder alone, whose class is another while it is patched."""
    model, inputs = made(name), CASES[name].inputs(LENGTH)
    twin = patched_copy(model)
    kind = type(twin)
    twin.save_pretrained(tmp_path)
    assert type(twin) is kind is not type(model)
    assert "relattn" not in (tmp_path / "config.json").read_text().lower()
    with torch.no_grad():
        again = type(model).from_pretrained(tmp_path).eval()
        torch.testing.assert_close(again(**inputs)[0], model(**inputs)[0], **TOLERANCE)


def test_a_mask_of_pairs_for_one_layer() -> None:
    model = made("parakeet")
    states, pairs = torch.randn(BATCH, LENGTH, WIDTH), torch.rand(BATCH, 1, LENGTH, LENGTH) < 0.5
    pairs |= torch.eye(LENGTH, dtype=torch.bool)
    positions = model.encode_positions(states)
    with torch.no_grad():
        theirs, ours = (
            one.layers[0].self_attn(states, positions, attention_mask=pairs)[0] for one in (model, patched_copy(model))
        )
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_cohere_asr_with_parakeet_s_encoder() -> None:
    """Its decoder goes by name, with cross attention to speech that ends early."""
    encoder = {**ENCODER, **SUBSAMPLING}
    config = hf.CohereAsrConfig(**TEXT, intermediate_size=24, encoder_config=encoder, decoder_start_token_id=4)
    model = drawn(hf.CohereAsrForConditionalGeneration(config))
    twin = patched_copy(model)
    mask = torch.ones(BATCH, 40, dtype=torch.long)
    mask[0, 28:] = 0
    speech = {"input_features": torch.randn(BATCH, 40, 8), "attention_mask": mask}
    tokens = torch.randint(5, VOCABULARY, (BATCH, 6))
    with torch.no_grad():
        theirs, ours = (one(**speech, decoder_input_ids=tokens).logits for one in (model, twin))
        torch.testing.assert_close(ours, theirs, **TOLERANCE)
        found = [one.generate(**speech, max_new_tokens=5, do_sample=False) for one in (model, twin)]
    assert torch.equal(*found)


def test_fastspeech2_whole() -> None:
    """Encoder, predictors and decoder, whose speech is as long as the predicted durations."""
    decoder = {"decoder_layers": 1, "decoder_num_attention_heads": 2, "decoder_linear_units": 24}
    config = hf.FastSpeech2ConformerConfig(**SIZES, **decoder, vocab_size=VOCABULARY, num_mel_bins=MELS)
    model = hf.FastSpeech2ConformerModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, LENGTH - 3 :] = 0
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    with torch.no_grad():
        theirs, ours = (one(tokens, attention_mask=mask) for one in (model, patched_copy(model)))
    torch.testing.assert_close(
        ours.encoder_last_hidden_state[mask.bool()], theirs.encoder_last_hidden_state[mask.bool()], **TOLERANCE
    )
    torch.testing.assert_close(ours.spectrogram, theirs.spectrogram, **TOLERANCE)


@pytest.mark.parametrize("length", [7, 8, 21])
def test_granite_speech_5_halves_its_frames(length: int) -> None:
    """Blocks of halved frames, and a mask that is halved with them."""
    model = drawn(granite_speech5(subsample_layers=[0]))
    inputs = masked(length)
    real = model(**inputs).attention_mask.bool()
    assert_same(model, "last_hidden_state", real, **inputs)
    assert_same(model, "last_hidden_state", input_features=inputs["input_features"])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("chunk_size", [-1, 3])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(BATCH, 21), (1, 1240)])
def test_phi_4_cuts_its_speech(batch: int, length: int, training: bool, chunk_size: int) -> None:
    """Beyond 500 frames into pieces; in training NumPy draws whether the first chunk is the short one.

    In float64: rounding to float32 grows through the layers, in the original as in the patched model.
    """
    config = hf.Phi4MultimodalAudioConfig(**PHI4, bias_max_distance=5, chunk_size=chunk_size)
    model = drawn(Phi4MultimodalAudioModel(config)).train(training).double()
    twin, states = patched_copy(model), torch.randn(batch, length, PHI4["input_size"]).double()
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[0, length - 9 :] = False
    for seed in range(3 if training else 1):
        for seen in (mask, None):
            both = []
            for one in (model, twin):
                np.random.seed(seed)
                with torch.no_grad():
                    both.append(one(states, seen))
            torch.testing.assert_close(*both)


def test_phi_4_cuts_the_speech_of_a_batch() -> None:
    """transformers 5.23 takes a view of pieces that needs a copy, where there is more than one element; ours does.

    In float64: in float32 the sums of 1,240 steps leave the tolerance on some processors.
    """
    model = made("phi4_multimodal_audio").double()
    states = torch.randn(BATCH, 1240, PHI4["input_size"], dtype=torch.float64)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="view size"):
            model(states, None)
        alone = torch.cat([model(one, None) for one in states.split(1)])
        torch.testing.assert_close(patched_copy(model)(states, None), alone, **TOLERANCE)


def test_phi_4_s_dropout() -> None:
    twin = patched_copy(made("phi4_multimodal_audio")).train()
    inputs = CASES["phi4_multimodal_audio"].inputs(LENGTH)
    assert torch.equal(twin(**inputs), twin(**inputs))
    for module in twin.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    assert not torch.equal(twin(**inputs), twin(**inputs))


def test_phi_4_s_padding_is_attended_to() -> None:
    """transformers 5.23: a boolean mask is added to the scores as numbers, so that what stands in padding counts."""
    model = made("phi4_multimodal_audio")
    inputs = CASES["phi4_multimodal_audio"].inputs(LENGTH)
    other = inputs["hidden_states"].clone()
    other[0, -2:] += 1.0
    with torch.no_grad():
        for one in (model, patched_copy(model)):
            assert not torch.allclose(one(other, inputs["mask"])[0, 0], one(**inputs)[0, 0], **TOLERANCE)

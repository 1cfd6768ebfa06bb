"""XLNet with two streams, memories and masks of pairs, its outputs, and what it refuses."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import relattn.hf
from relattn import UnsupportedError
from tests import seeds
from tests.bad_input.refusal import refused
from tests.hf.test_memory_is_linear import Allocated
from tests.hf.twins import FLOAT32, assert_same, twins
from tests.peers.cases.case import BATCH, HEADS, LENGTH, VOCABULARY, drawn, padding
from tests.peers.cases.xlnet import XLNET

TARGETS = 3


def xlnet(**changes: Any) -> hf.XLNetModel:
    return hf.XLNetModel(hf.XLNetConfig(**XLNET, **changes))


def text(length: int = LENGTH, batch: int = BATCH) -> dict[str, Tensor]:
    return {
        "input_ids": torch.randint(3, VOCABULARY, (batch, length)),
        "token_type_ids": torch.randint(0, 3, (batch, length)),
    }


def factorization(batch: int = BATCH) -> dict[str, Tensor]:
    """A random order: a token sees those before it in the order, not itself, and the first sees nothing."""
    order = torch.stack([torch.randperm(LENGTH) for _ in range(batch)])
    targets = torch.zeros(batch, TARGETS, LENGTH, dtype=torch.float64)
    for one, places in enumerate(order):
        targets[one, range(TARGETS), [int((places == n).nonzero()) for n in range(TARGETS)]] = 1.0
    return {"perm_mask": (order.unsqueeze(2) <= order.unsqueeze(1)).double(), "target_mapping": targets}


@pytest.mark.parametrize("masks", ["order", "order and padding", "padding", "neither"])
def test_two_streams(masks: str) -> None:
    """Both streams of every layer; the first token of the order sees nothing, and all keys alike."""
    inputs = {**text(), **factorization()}
    if "order" not in masks:
        del inputs["perm_mask"]
    if "padding" in masks:
        inputs["attention_mask"] = padding(LENGTH)

    def answer(model: Any) -> tuple[Tensor, ...]:
        output = model(**inputs, output_hidden_states=True, return_dict=False)
        return output[0], *output[2]

    assert_same(twins(xlnet()), answer)


@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("masks", ["order", "memory", "both"])
def test_one_direction(same_length: bool, masks: str) -> None:
    """attn_type="uni", with same_length a window as long as the memory; batches of one, see below.

    Every query sees a key, its own: of one that sees none the original reads positions that it does not have.
    """
    inputs = {**text(batch=1), **(factorization(1) if masks != "memory" else {})}
    if masks != "memory":
        inputs["perm_mask"][:, range(LENGTH), range(LENGTH)] = 0.0
    if masks != "order":
        inputs["mems"] = list(torch.randn(2, 5, 1, XLNET["d_model"], dtype=torch.float64))
    model = xlnet(attn_type="uni", same_length=same_length)
    assert_same(twins(model), lambda model: model(**inputs)[0])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("settings", [{}, {"mem_len": 6}, {"mem_len": 4, "reuse_len": 7}, {"clamp_len": 3}], ids=str)
@pytest.mark.parametrize("streams", [1, 2])
def test_segments_one_after_the_other(settings: dict[str, int], streams: int) -> None:
    """Every token of a memory is seen, padding too, whose states are therefore the original's."""
    first, second = text(), text(7)
    second["attention_mask"] = padding(7)
    more = {"target_mapping": factorization()["target_mapping"]} if streams == 2 else {}

    def answer(model: Any) -> tuple[Tensor, ...]:
        before = model(**first, **more, attention_mask=padding(LENGTH), use_mems=True)
        after = model(**second, mems=before.mems, use_mems=True)
        return after.last_hidden_state, *after.mems, *before.mems

    assert_same(twins(xlnet(**settings)), answer)


def test_the_other_ways_to_give_inputs() -> None:
    """input_mask is 1 for padding; embeddings instead of tokens."""
    embeddings, mask = torch.randn(BATCH, LENGTH, XLNET["d_model"], dtype=torch.float64), 1 - padding(LENGTH)
    assert_same(twins(xlnet()), lambda model: model(inputs_embeds=embeddings, input_mask=mask)[0])


@pytest.mark.parametrize("streams", [1, 2])
def test_outputs(streams: int) -> None:
    """The same names and shapes, and the weights; none is dropped, and a row is 1 in all."""
    inputs = {**text(), "attention_mask": padding(LENGTH)}
    if streams == 2:
        inputs["target_mapping"] = factorization()["target_mapping"].float()
    model = drawn(xlnet())
    asked = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        expected = model(**inputs, **asked)
        relattn.hf.patch(model)
        found, listed = model(**inputs, **asked), model(**inputs, **asked, return_dict=False)
        assert model(**inputs, use_mems=False).keys() == {"last_hidden_state"}
    assert found.keys() == expected.keys() and len(listed) == len(found)
    for name in ("mems", "hidden_states", "attentions"):
        ours, theirs = (flat(output[name]) for output in (found, expected))
        assert len(ours) == len(theirs) > 0
        real = padding(LENGTH).bool()
        for one, other in zip(ours, theirs, strict=True):
            if name == "attentions":
                assert one.shape == (BATCH, HEADS, LENGTH, LENGTH)
                one, other = one.transpose(1, 2)[real], other.transpose(1, 2)[real]
            torch.testing.assert_close(one, other, **FLOAT32)


def flat(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else [one for output in outputs for one in flat(output)]


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True, "top_k": 5}], ids=["greedy", "sampling"])
def test_generation(how: dict[str, Any]) -> None:
    """The last token is predicted by the second stream."""
    model = drawn(hf.XLNetLMHeadModel(hf.XLNetConfig(**XLNET)))
    prompt, found = text()["input_ids"], []
    for patched in (False, True):
        if patched:
            relattn.hf.patch(model)
        seeds.start_torch(3)
        found.append(model.generate(prompt, max_new_tokens=6, **how))
    assert torch.equal(*found)


@pytest.mark.slow
def test_memory_of_two_streams() -> None:
    """Of a few targets it is linear in the length of a padded text with a memory."""
    largest = []
    for length in (300, 600):
        model, targets = drawn(xlnet()), torch.zeros(BATCH, TARGETS, length)
        targets[:, range(TARGETS), range(TARGETS)] = 1.0
        relattn.hf.patch(model, backend="blocks")
        mems = list(torch.randn(2, length, BATCH, XLNET["d_model"]))
        with Allocated() as seen:
            model(**text(length), attention_mask=padding(length), target_mapping=targets, mems=mems)[0].sum().backward()
        largest.append(seen.most[0])
    assert largest[1] <= 2.05 * largest[0]


def test_saved_under_the_name_of_the_original(tmp_path: Any) -> None:
    model = drawn(xlnet())
    relattn.hf.patch(model)
    model.save_pretrained(tmp_path)
    assert '"XLNetModel"' in (tmp_path / "config.json").read_text()
    inputs = text()
    with torch.no_grad():
        again = hf.XLNetModel.from_pretrained(tmp_path)
        torch.testing.assert_close(again(**inputs)[0], model(**inputs)[0], **FLOAT32)


def test_what_is_refused() -> None:
    model, inputs = xlnet(bi_data=True), text()
    relattn.hf.patch(model)
    with refused(
        UnsupportedError,
        "bi_data=True reads half of the batch backwards, and relattn has one table of positions for all of it; call "
        "relattn.hf.unpatch",
    ):
        model(**inputs)
    with refused(ValueError, "input_ids, inputs_embeds: got both or none of them; expected one"):
        model()
    with refused(ValueError, "attention_mask, input_mask: got both; expected one, the other says the opposite"):
        model(**inputs, attention_mask=padding(LENGTH), input_mask=padding(LENGTH))


# --- faults of the original, each shown on it first ---


def test_two_streams_in_half_precision() -> None:
    """transformers 5.23 leaves the positions in float32 where there are two streams."""
    inputs = {**text(), "target_mapping": factorization()["target_mapping"].bfloat16()}
    model = drawn(xlnet())
    with torch.no_grad():
        expected = model(**{**inputs, "target_mapping": inputs["target_mapping"].float()})[0]
        half = model.bfloat16()
        with pytest.raises(RuntimeError):
            half(**inputs)
        relattn.hf.patch(half)
        torch.testing.assert_close(half(**inputs)[0].float(), expected, rtol=0.1, atol=0.1)


def test_one_direction_of_a_padded_batch() -> None:
    """transformers 5.23 adds the padding of a batch to a mask of one text. Ours are the texts one by one."""
    model = drawn(xlnet(attn_type="uni"))
    inputs, mask = text(), padding(LENGTH)
    with torch.no_grad():
        one_by_one = [
            model(**{name: x[[n]] for name, x in inputs.items()}, attention_mask=mask[[n]])[0] for n in range(BATCH)
        ]
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            model(**inputs, attention_mask=mask)
        relattn.hf.patch(model)
        found = model(**inputs, attention_mask=mask)[0]
    torch.testing.assert_close(found, torch.cat(one_by_one), **FLOAT32)

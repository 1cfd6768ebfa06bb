"""The grid, and what is refused."""

import pytest
import torch

from relattn.cli.bench.settings import Settings


def test_the_grid_is_the_product_and_lengths_ascend():
    settings = Settings(("none", "t5"), (64, 32), ("yes",), ("training", "forward"), (8, 16), (2,), device="cpu")
    found = list(settings.workloads())
    assert len(found) == len(set(found)) == 2 * 2 * 2 * 2
    assert [work.length for work in found] == [32, 64] * 8
    assert {(work.encoding, work.head_dim, work.mode) for work in found} == {
        (encoding, width, mode) for encoding in ("none", "t5") for width in (8, 16) for mode in ("forward", "training")
    }
    assert all(work.causal for work in found)


@pytest.mark.parametrize("causal", [("no",), ("yes",), ("no", "yes")])
def test_decoding_is_causal_and_comes_once(causal):
    settings = Settings(("t5",), (64,), causal, ("decoding",), (8,), (2,), (1, 4), device="cpu")
    found = list(settings.workloads())
    assert [(work.mode, work.causal, work.batch) for work in found] == [("decoding", True, 1), ("decoding", True, 4)]


def test_encodings_on_axes_come_once_and_go_with_both_directions():
    settings = Settings(("t5", "grid-bias"), (64,), ("no", "yes"), ("forward",), (8,), (2,), device="cpu")
    found = [(work.encoding, work.causal) for work in settings.workloads()]
    assert found == [("t5", False), ("t5", True), ("grid-bias", False)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"encodings": ("grid-bias",), "causal": ("yes",)},
            r"causal: got \('yes',\); expected 'no' among them, for grid-bias has no past",
        ),
        (
            {"encodings": ("t5", "layout"), "modes": ("forward", "decoding")},
            "modes: got 'decoding'; expected others, for layout has no past to decode from",
        ),
        (
            {"encodings": ("tango",)},
            "encodings: got 'tango'; expected one of 'none', 'relative', 'relative-heads', 'shaw-keys',",
        ),
        ({"encodings": ()}, r"encodings: got \(\); expected at least one, each once"),
        ({"lengths": (64, 64)}, r"lengths: got \(64, 64\); expected at least one, each once"),
        ({"lengths": (0,)}, "lengths: got 0; expected an int of at least 1"),
        ({"heads": (0,)}, "heads: got 0; expected an int of at least 1"),
        ({"batches": (0,)}, "batches: got 0; expected an int of at least 1"),
        (
            {"head_dims": (5,), "encodings": ("rope",)},
            "head_dims: got 5; expected an even width, for rope's pairs of features",
        ),
        ({"head_dims": (-8,)}, "head_dims: got -8; expected an int of at least 1"),
        (
            {"head_dims": (7,), "encodings": ("transformer-xl",)},
            "head_dims: got 7; expected an even width, for transformer-xl's sinusoids",
        ),
        ({"causal": ("maybe",)}, "causal: got 'maybe'; expected one of 'no', 'yes'"),
        ({"modes": ("backward",)}, "modes: got 'backward'; expected one of 'forward', 'training', 'decoding'"),
        ({"dtype": "int8"}, "dtype: got 'int8'; expected one of 'float64', 'float32', 'bfloat16', 'float16'"),
        ({"device": "tpu"}, "device: got 'tpu'; expected one of 'cpu', 'cuda'"),
        ({"seconds": 0.0}, r"seconds: got 0\.0; expected a finite number above 0"),
        ({"patience": float("nan")}, "patience: got nan; expected a finite number above 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        Settings(**given)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Settings().device == "cpu"
    with pytest.raises(ValueError, match="device: got 'cuda'; expected 'cpu', for torch finds no GPU here"):
        Settings(device="cuda")

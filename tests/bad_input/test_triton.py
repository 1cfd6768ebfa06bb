"""Why the kernels cannot run a call: the place, and each thing that a call may ask for."""

import pytest
import torch

from relattn import OffsetTable, ScoreTerms, ShawEmbedding, UnsupportedError, explain
from relattn.backends.triton import reasons
from tests.bad_input.refusal import LK, LQ, B, D, H, call, ones, refused

NO_GPU = "its kernels run on CUDA, and the query lies on cpu"


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the place were right."""
    monkeypatch.setattr(reasons, "_of_the_place", lambda *_: [])


@pytest.fixture
def not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.usefixtures("not_interpreted")
def test_a_cpu_is_no_place_for_kernels():
    with refused(UnsupportedError, f"backend='triton' cannot run this: {NO_GPU}; use 'sdpa' or 'dense'...") as caught:
        call(backend="triton")
    assert caught.value.reasons == {"triton": [NO_GPU]}


@pytest.mark.usefixtures("not_interpreted")
def test_explain_says_so():
    assert call(explain).others["triton"] == [NO_GPU]


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasons, "_package", lambda: None)
    with refused(UnsupportedError, "backend='triton' cannot run this: the package triton is not installed; ..."):
        call(backend="triton")


def test_another_triton(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasons, "_package", lambda: "3.2.0")
    said = "its kernels were tried with triton 3.7 alone, and this is 3.2.0; ..."
    with refused(UnsupportedError, f"backend='triton' cannot run this: {said}"):
        call(backend="triton")


def test_a_gpu_that_is_too_old(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    said = "its kernels need a GPU of compute capability 8.0 or later; this one has 7.5"
    assert reasons._of_the_place("cuda", 0) == [said]


def test_rocm_until_someone_has_run_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    said = "its kernels were made for CUDA, and nobody has run them on ROCm"
    assert reasons._of_the_place("cuda", 0) == [said]


def test_the_interpreter_is_taken_by_name_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    explanation = call(explain, encoding=ShawEmbedding(D, 2))
    assert explanation.chosen == "dense"
    assert explanation.others["triton"] == ["usable, but on this device only where it is named"]


WIDE = {"query": ones(B, H, LQ, 257), "key": ones(B, H, LK, 257)}
LENGTHS = {"query": LQ, "key": LK, "value": LK}
DOUBLE = {name: ones(B, H, length, D, dtype=torch.float64) for name, length in LENGTHS.items()}
LACKS = {
    "it computes in float32, and query is float64": DOUBLE,
    "for listed positions it takes the first offset of a table as an int, not as a tensor": {
        "key_position": torch.arange(LK),
        "encoding": ScoreTerms(bias=OffsetTable(ones(H, LQ + LK), torch.tensor(-LQ))),
    },
    "it takes offsets up to 1073741824 on the sequence, and those of this call reach 2147483659": {
        "query_position": 2**31
    },
    "it takes tables of offsets up to 1073741824, and bias begins at offset -1073741824": {
        "encoding": ScoreTerms(bias=OffsetTable(ones(H, 2), -(2**30), "zero")),
    },
    "it holds at most 256 features of a row on chip, and query has 257": WIDE,
    "it holds at most 256 features of a row on chip, and value has 300": {"value": ones(B, H, LK, 300)},
}


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("reason", LACKS)
def test_what_the_kernels_lack(reason: str):
    with refused(UnsupportedError, f"backend='triton' cannot run this: {reason}; use ...'dense'...") as caught:
        call(backend="triton", **LACKS[reason])
    assert caught.value.reasons == {"triton": [reason]}


@pytest.mark.usefixtures("on_a_gpu")
def test_every_reason_is_given():
    with pytest.raises(UnsupportedError) as caught:
        wide = {"value": ones(B, H, LK, 300, dtype=torch.float64)}
        call(backend="triton", **DOUBLE | wide)
    assert len(caught.value.reasons["triton"]) == 2

"""Why the kernels cannot run a call: the place, and each thing that a call may ask for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from relattn import OffsetTable, ScoreTerms, ShawEmbedding, UnsupportedError, explain
from relattn.backends.select import select
from relattn.backends.triton.host import reasons, slow_place
from relattn.errors import RelattnWarning
from tests.bad_input.refusal import LK, LQ, B, D, H, call, ones, refused
from tests.requests import request_of

NO_GPU = "its kernels run on CUDA, and the query lies on cpu"


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the place were right."""
    monkeypatch.setattr(reasons, "of_the_place", lambda *_: [])


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


HOW = (
    "Triton 3.7 comes with torch 2.12 and 2.13, 3.8 with torch 2.14, 3.9 with torch 2.15; beside an older torch "
    "(2.11 was tried), pip install 'triton==3.7.1'"
)


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (None, f"the package triton is not installed: {HOW}"),
        ("3.6.0", f"its kernels run with Triton 3.7, 3.8, 3.9, and this is 3.6.0: {HOW}"),
        ("3.10.0", f"its kernels run with Triton 3.7, 3.8, 3.9, and this is 3.10.0: {HOW}"),
    ],
)
def test_a_triton_that_is_missing_or_another(package: str | None, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasons, "_package", lambda: package)
    with refused(UnsupportedError, f"backend='triton' cannot run this: {said}; ..."):
        call(backend="triton")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}.md" for page in ("start", "versions", "hf", "triton"))])
def test_the_pages_say_which_torch_brings_which_triton(page: str):
    words = Path(__file__).parents[2].joinpath(page).read_text().replace("`", "").split()
    assert HOW in " ".join(words)


@pytest.mark.parametrize("package", ["3.7.0", "3.7.1", "3.8.0", "3.8.0.post1", "3.9.0+git1a2b"])
def test_a_triton_that_was_tried(package: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasons, "_package", lambda: package)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert reasons.of_the_place("cpu", None) == []


@pytest.fixture
def long_call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A call on CUDA without numbers, of 2^20 pairs or another number of keys; answers what is taken."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    slow_place._said.cache_clear()

    def ask(keys: int = 1024, dtype: torch.dtype = torch.float32, **options: Any) -> str:
        with FakeTensorMode():
            query, key = (torch.empty(1, 1, n, 8, device="cuda", dtype=dtype) for n in (1024, keys))
            table = OffsetTable(torch.empty(1, 1, 8, device="cuda", dtype=dtype), 0, "clamp")
            asked = request_of(query, key, key, encoding=ScoreTerms(relative_keys=table), **options)
            assert asked.explain()  # it runs nothing, and says no word
            return select(asked.backend, asked.problem).name

    return ask


@pytest.mark.parametrize("why", ["version", "capability", "platform", "package"])
def test_a_long_call_says_once_what_would_take_less_time(
    why: str, long_call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reasons, "_package", lambda: {"version": "3.6.0", "package": None}.get(why, "3.8.0"))
    if why == "capability":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    if why == "platform":
        monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.warns(RelattnWarning) as caught:
        chosen = long_call()
        long_call()
    (place,) = reasons.of_the_place("cuda", 0)
    said = f"backend='auto' takes {chosen!r} on this GPU, and 'triton' would take less time, but {place}"
    assert [str(warning.message) for warning in caught] == [said]


@pytest.mark.filterwarnings("error::relattn.errors.RelattnWarning")
@pytest.mark.parametrize(
    "options",
    [{"keys": 1023}, {"dtype": torch.float64}, {"backend": "dense"}],
    ids=["few pairs", "float64, which no Triton takes", "named"],
)
def test_no_word_where_another_triton_would_not_help(
    options: dict[str, Any], long_call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reasons, "_package", lambda: "3.6.0")
    assert long_call(**options) in ("dense", "blocks")


@pytest.mark.filterwarnings("error::relattn.errors.RelattnWarning")
def test_no_word_where_triton_runs(long_call: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasons, "_package", lambda: "3.8.0")
    assert long_call() == "triton"


def test_a_gpu_that_is_too_old(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    said = "its kernels need a GPU of compute capability 8.0 or later; this one has 7.5"
    assert reasons.of_the_place("cuda", 0) == [said]


def test_rocm_until_someone_has_run_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    said = "its kernels were made for CUDA, and nobody has run them on ROCm"
    assert reasons.of_the_place("cuda", 0) == [said]


def test_the_interpreter_is_taken_by_name_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    explanation = call(explain, encoding=ShawEmbedding(D, 2))
    assert explanation.chosen == "native"
    assert explanation.others["triton"] == ["usable, but on this device only where it is named"]


WIDE = {"query": ones(B, H, LQ, 257), "key": ones(B, H, LK, 257)}
LENGTHS = {"query": LQ, "key": LK, "value": LK}
DOUBLE = {name: ones(B, H, length, D, dtype=torch.float64) for name, length in LENGTHS.items()}
LACKS = {
    "it computes in float32, and query is float64": DOUBLE,
    "for explicit positions it takes the first offset of a table as an int, not as a tensor": {
        "key_position": torch.arange(LK),
        "encoding": ScoreTerms(bias=OffsetTable(ones(H, LQ + LK), torch.tensor(-LQ))),
    },
    "it takes offsets up to 1073741824 on the sequence, and those of this call reach 2147483659": {
        "query_position": 2**31
    },
    "it takes tables of offsets up to 1073741824, and bias begins at offset -1073741824": {
        "encoding": ScoreTerms(bias=OffsetTable(ones(H, 1), -(2**30), "zero")),
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

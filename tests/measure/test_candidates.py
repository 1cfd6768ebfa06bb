"""Every candidate against the truth, and why it is not defined where it is not."""

import importlib.util
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from transformers.models.swin.modeling_swin import SwinRelativePositionBias

from measure.candidates import CANDIDATES, WITH_QUERIES
from measure.check import check
from relattn.backends.select import BACKENDS
from relattn.cli.bench.relattn_candidates import BACKEND_OF, FLOOR, chosen_by_auto
from relattn.cli.bench.workload import ENCODINGS, ON_AXES, Workload

DECODING = {"mode": "decoding", "causal": True}
COMPILED = [name for name, candidate in CANDIDATES.items() if candidate.compiles]


def workload(encoding, causal=False, mode="training", batch=1):
    return Workload(encoding, 16, 8, 2, causal, mode, batch=batch)


def reason(name, encoding, **options):
    return CANDIDATES[name].reason(workload(encoding, **options))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("mode", "causal"),
    [("forward", False), ("forward", True), ("training", False), ("training", True), ("decoding", True)],
)
@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in ON_AXES])
def test_every_candidate_that_is_defined_is_right(encoding, mode, causal, batch):
    work = workload(encoding, causal, mode, batch)
    checked = {
        name: check(candidate, work)
        for name, candidate in CANDIDATES.items()
        if not candidate.compiles and candidate.reason(work) is None
    }
    assert {FLOOR, "relattn reference", "relattn dense"} <= set(checked)
    assert {name: found for name, found in checked.items() if not found.right} == {}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mode", ["forward", "training"])
@pytest.mark.parametrize("encoding", ON_AXES)
def test_on_axes_every_candidate_that_is_defined_is_right(encoding, mode, batch):
    work = workload(encoding, mode=mode, batch=batch)
    defined = {name: candidate for name, candidate in CANDIDATES.items() if candidate.reason(work) is None}
    ours = {f"relattn {name}" for name in ("reference", "dense", "blocks", "native")}
    peers = set() if (encoding, mode) == ("layout", "training") else {"transformers"}
    assert set(defined) - {"timm"} == {FLOOR, "sdpa, S as mask"} | ours | peers
    checked = {name: check(candidate, work) for name, candidate in defined.items()}
    assert {name: found for name, found in checked.items() if not found.right} == {}


def test_timm_is_right_where_it_is_installed(monkeypatch):
    """Its RelPosBias numbers its rows as Swin's does: transformers' stands for it."""

    class RelPosBias(SwinRelativePositionBias):
        def __init__(self, window_size, num_heads):
            super().__init__(num_heads, window_size)

        def get_bias(self):
            return self()

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "timm")
    monkeypatch.setitem(sys.modules, "timm.layers", SimpleNamespace(RelPosBias=RelPosBias))
    assert reason("timm", "grid-bias") is None
    assert check(CANDIDATES["timm"], workload("grid-bias", batch=2)).right


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "encoding", [name for name in ENCODINGS if name not in ("shaw", "rope", *WITH_QUERIES, *ON_AXES)]
)
def test_flex_is_right(encoding, causal):
    found = check(CANDIDATES["flex"], Workload(encoding, 16, 16, 2, causal, "forward"))
    assert found.right, found


def test_all_of_ours_and_all_arrangements_are_candidates():
    assert set(BACKEND_OF) <= set(CANDIDATES)
    assert list(BACKEND_OF.values()) == list(BACKENDS)
    assert {f"plain, {name}" for name in ("gather", "pad_reshape", "diagonals", "strided")} <= set(CANDIDATES)
    assert COMPILED == ["flex"]
    assert [name for name, candidate in CANDIDATES.items() if not candidate.encodes] == [FLOOR]


@pytest.mark.parametrize(
    ("name", "encoding", "options", "said"),
    [
        ("relattn sdpa", "relative", {}, "it has no relative keys"),
        ("plain", "relative", {}, "with relative keys it is one of the four arrangements"),
        ("plain, strided", "t5", {}, "the encoding has no relative keys to arrange"),
        ("plain, pad_reshape", "relative", {}, "it is defined for causal self-attention only"),
        ("sdpa, S as mask", "shaw", {}, "a mask has no relative values"),
        ("sdpa, S as mask", "none", {}, "there is no term to hand over as a mask"),
        ("flex", "shaw", {"mode": "forward"}, "a score_mod has no relative values"),
        ("flex", "relative", {}, "FlexAttention has no backward on a CPU"),
        ("transformers", "relative", {}, "measured for T5, ALiBi and several axes only"),
        ("transformers", "layout", {}, "its LayoutLMv3 gives the tables of the three biases no gradient"),
        ("relattn sdpa", "grid-bias", {}, "it has no bias"),
        ("plain", "grid-bias", {}, "measured for offsets of the sequence alone"),
        ("plain, strided", "decomposed", {}, "measured for offsets of the sequence alone"),
        ("flex", "layout", {"mode": "forward"}, "measured for offsets of the sequence alone"),
        ("x-transformers", "layout", {}, "measured for T5 and ALiBi only"),
        ("timm", "t5", {}, "measured for grid-bias only"),
        ("timm", "decomposed", {}, "measured for grid-bias only"),
        ("transformers", "alibi", {}, "its ALiBi (Bloom) is causal only"),
        ("x-transformers", "relative", {}, "measured for T5 and ALiBi only"),
        ("plain", "rope", {}, "a rotation adds no term to the scores"),
        ("flex", "rope", {}, "a rotation adds no term to the scores"),
        ("sdpa, S as mask", "rope", {}, "there is no term to hand over as a mask"),
        ("plain", "disentangled", {}, "it is written for relative keys alone"),
        ("plain, strided", "key-query", {}, "it is written for relative keys alone"),
        ("sdpa, S as mask", "disentangled", {}, "it is written for relative keys alone"),
        ("flex", "key-query", {"mode": "forward"}, "it is written for relative keys alone"),
        ("plain, gather", "relative", DECODING, "for one query the products are in place"),
        ("flex", "relative", DECODING, "measured on whole sequences only"),
        ("transformers", "t5", DECODING, "measured on whole sequences only"),
        ("x-transformers", "t5", DECODING, "measured on whole sequences only"),
    ],
)
def test_what_is_not_defined_says_why(name, encoding, options, said):
    assert reason(name, encoding, **options) == said


def test_what_is_defined_has_no_reason():
    assert reason("relattn sdpa", "none") is None
    assert reason("plain, pad_reshape", "relative", causal=True) is None
    assert reason("flex", "relative", mode="forward") is None
    assert reason("transformers", "alibi", causal=True) is None
    assert reason("plain", "relative", **DECODING) is None
    assert reason("sdpa, S as mask", "relative-heads", **DECODING) is None
    assert reason("transformers", "layout", mode="forward") is None


def test_a_package_that_is_missing_is_a_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert reason("x-transformers", "t5") == "x-transformers is not installed"
    assert reason("timm", "grid-bias") == "timm is not installed"


def test_auto_is_named_by_what_it_takes():
    assert chosen_by_auto(workload("none")) == "sdpa"
    assert chosen_by_auto(workload("relative")) in set(BACKENDS) - {"sdpa", "reference"}


@pytest.mark.parametrize("changes", [{"window": 5}, {"lowered": True}, {"window": 5, "lowered": True}], ids=str)
@pytest.mark.parametrize("mode", ["forward", "training", "decoding"])
def test_ours_are_right_under_a_window_and_with_terms_given(mode, changes):
    for encoding in ("relative", "transformer-xl", "disentangled"):
        work = replace(workload(encoding, mode == "decoding", mode), **changes)
        found = {name: check(CANDIDATES[f"relattn {name}"], work) for name in ("native", "dense", "blocks")}
        assert all(one.right for one in found.values()), found


# --- the check can fail ---


@pytest.mark.parametrize(("name", "causal", "mode"), [("native", False, "training"), ("dense", True, "decoding")])
def test_a_candidate_without_the_window_is_found_out(name, causal, mode):
    """Also one that lets every query see one key too few: the check's length goes beyond any window."""
    right = CANDIDATES[f"relattn {name}"]
    for window in (5, 300):
        work = replace(workload("none", causal, mode), window=window)
        for other in (None, window - 1):
            wrong = replace(right, prepare=partial(narrowed, prepare=right.prepare, window=other))
            assert not check(wrong, work).right
        assert check(right, work).right


def narrowed(case, prepare, window):
    return prepare(replace(case, workload=replace(case.workload, window=window)))


def without_encoding(case):
    return CANDIDATES["plain"].prepare(replace(case, encoding=None))


def future_seen(case):
    return CANDIDATES["plain"].prepare(replace(case, workload=replace(case.workload, causal=False)))


def keys_for_values(case):
    return CANDIDATES["plain"].prepare(replace(case, value=case.key, key=case.value))


def not_finite(case):
    return lambda: CANDIDATES["plain"].prepare(case)() / 0.0


def of_another_shape(case):
    return lambda: CANDIDATES["plain"].prepare(case)()[:, :1]


@pytest.mark.parametrize("mistake", [without_encoding, future_seen, keys_for_values, not_finite, of_another_shape])
def test_a_wrong_candidate_is_found_out(mistake):
    candidate = replace(CANDIDATES["plain"], prepare=mistake)
    assert not check(candidate, workload("alibi", causal=True, mode="forward")).right
    assert check(CANDIDATES["plain"], workload("alibi", causal=True, mode="forward")).right


def turned(case):
    """Rows for columns: an image on its side."""
    height, width = case.places["y"], case.places["x"]
    return CANDIDATES["relattn dense"].prepare(replace(case, places={"y": width, "x": height}))


def a_page_for_all(case):
    places = {axis: place[:1].expand_as(place) for axis, place in case.places.items()}
    return CANDIDATES["relattn dense"].prepare(replace(case, places=places))


@pytest.mark.parametrize(("encoding", "mistake"), [("layout", turned), ("layout", a_page_for_all)])
def test_tokens_in_a_wrong_place_are_found_out(encoding, mistake):
    right = CANDIDATES["relattn dense"]
    work = workload(encoding, mode="forward", batch=2)
    assert not check(replace(right, prepare=mistake), work).right
    assert check(right, work).right


def test_a_wrong_gradient_is_found_out():
    def detached(case):
        call = CANDIDATES["plain, strided"].prepare(case)
        return lambda: call() + 1e-3 * (case.query - case.query.detach())

    found = check(replace(CANDIDATES["plain"], prepare=detached), workload("relative"))
    assert not found.right
    assert found.tensor == "gradient of query"

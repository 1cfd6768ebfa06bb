"""Every argument of every encoding."""

import numpy as np
import pytest
import torch

import relattn
from relattn import (
    AlibiBias,
    DisentangledEmbedding,
    FunctionBias,
    KerpleBias,
    KeyQueryEmbedding,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    SandwichBias,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
)
from relattn.positions.contiguous import ContiguousPositions
from tests.bad_input.refusal import refused

NAN, INF = float("nan"), float("inf")
NO_SIZES = (0, -1, 1.5, 4.0, "4", True, NAN, [4], np.int64(0), np.float64(4), np.bool_(True), torch.tensor(4))
GOOD = {
    RelativeEmbedding: {"head_dim": 8, "max_length": 4},
    ShawEmbedding: {"head_dim": 8, "max_distance": 4},
    TransformerXLEmbedding: {"num_heads": 4, "head_dim": 8},
    T5Bias: {"num_heads": 4},
    AlibiBias: {"num_heads": 4},
    KerpleBias: {"num_heads": 4},
    SandwichBias: {"num_heads": 4, "width": 8},
    KeyQueryEmbedding: {"head_dim": 8, "max_length": 4},
    DisentangledEmbedding: {"num_heads": 4, "head_dim": 8},
    RotaryEmbedding: {"head_dim": 8},
}


def make(encoding, **changes):
    return encoding(**{**GOOD[encoding], **changes})


@pytest.mark.parametrize("came", NO_SIZES, ids=repr)
@pytest.mark.parametrize(
    ("encoding", "name", "fixed"),
    [
        (RelativeEmbedding, "head_dim", {}),
        (RelativeEmbedding, "max_length", {}),
        (RelativeEmbedding, "num_heads", {}),
        (ShawEmbedding, "head_dim", {}),
        (ShawEmbedding, "num_heads", {}),
        (TransformerXLEmbedding, "num_heads", {}),
        (TransformerXLEmbedding, "head_dim", {}),
        (TransformerXLEmbedding, "embed_dim", {}),
        (TransformerXLEmbedding, "max_length", {}),
        (T5Bias, "num_heads", {}),
        (AlibiBias, "num_heads", {}),
        (KerpleBias, "num_heads", {}),
        (SandwichBias, "num_heads", {}),
        (SandwichBias, "width", {}),
        (RotaryEmbedding, "head_dim", {}),
    ],
)
def test_sizes(encoding, name, fixed, came):
    with refused(ValueError, f"{name}: got {came!r}; expected an int of at least 1"):
        make(encoding, **fixed, **{name: came})


@pytest.mark.parametrize("encoding", GOOD)
def test_sizes_given_as_none(encoding):
    for name in GOOD[encoding]:
        with refused(ValueError, f"{name}: got None; expected an int of at least..."):
            make(encoding, **{name: None})


@pytest.mark.parametrize("came", ["no", None, 1, np.bool_(True), torch.tensor(True)], ids=repr)
@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        (RelativeEmbedding, "causal"),
        (ShawEmbedding, "values"),
        (TransformerXLEmbedding, "interleaved"),
        (T5Bias, "bidirectional"),
        (AlibiBias, "learned"),
        (AlibiBias, "signed"),
        (RotaryEmbedding, "interleaved"),
    ],
)
def test_flags(encoding, name, came):
    with refused(TypeError, f"{name}: got {came!r}; expected True or False"):
        make(encoding, **{name: came})


@pytest.mark.parametrize("came", ["drop", "Clamp", None, 1, True, ["clamp"], {}], ids=repr)
def test_relative_beyond(came):
    with refused(ValueError, f"beyond: got {came!r}; expected one of 'error', 'clamp', 'zero'"):
        make(RelativeEmbedding, beyond=came)


@pytest.mark.parametrize(
    "came", [-1, 1.5, "4", True, (-1, 2), (2, -1), (1.0, 2), (None, None), (), (4,), (1, 2, 3), None], ids=repr
)
def test_shaw_max_distance(came):
    with refused(ValueError, f"max_distance: got {came!r}; expected an int of at least 0, or the pair (left, right)"):
        make(ShawEmbedding, max_distance=came)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"embed_dim": 7}, "embed_dim: got 7; expected an even width, a sine and a cosine for each frequency"),
        (
            {"num_heads": 3, "head_dim": 5},
            "embed_dim: got 15; expected an even width, a sine and a cosine for each frequency",
        ),
        (
            {"max_length": 9, "embed_dim": 32},
            "max_length: got 9 beside embed_dim=32, interleaved=False; a learned table has no sinusoids, leave those "
            "out or max_length",
        ),
        (
            {"max_length": 9, "interleaved": True},
            "max_length: got 9 beside embed_dim=None, interleaved=True; a learned table has no sinusoids, leave those "
            "out or max_length",
        ),
    ],
)
def test_transformer_xl(changes, said):
    with refused(ValueError, said):
        make(TransformerXLEmbedding, **changes)


@pytest.mark.parametrize(
    ("bidirectional", "num_buckets", "said"),
    [
        (True, 3, "expected an int of at least 4"),
        (True, "32", "expected an int of at least 4"),
        (True, 6, "expected a multiple of four, to be split evenly"),
        (False, 1, "expected an int of at least 2"),
        (False, 32.0, "expected an int of at least 2"),
        (False, 5, "expected a multiple of two, to be split evenly"),
    ],
)
def test_t5_num_buckets(bidirectional, num_buckets, said):
    with refused(ValueError, f"num_buckets: got {num_buckets!r}; {said}"):
        make(T5Bias, num_buckets=num_buckets, bidirectional=bidirectional)


@pytest.mark.parametrize("came", [8, 0, -1, 128.0, "128", True, None, NAN, INF, 2**60], ids=repr)
@pytest.mark.parametrize(("bidirectional", "exact"), [(True, 8), (False, 16)])
def test_t5_max_distance(came, bidirectional, exact):
    own = "the distances that have a bucket of their own, and below 2**60"
    said = f"max_distance: got {came!r}; expected an int above {exact}, {own}"
    with refused(ValueError, said):
        make(T5Bias, max_distance=came, bidirectional=bidirectional)


@pytest.mark.parametrize("came", [0, 1, 1.0, -2.0, "10000", None, True, NAN, INF, [2], torch.tensor(2.0)], ids=repr)
def test_rotary_base(came):
    with refused(ValueError, f"base: got {came!r}; expected a finite number above 1"):
        make(RotaryEmbedding, base=came)


@pytest.mark.parametrize("came", [0, 1, -2, 4.0, "4", True, [4]], ids=repr)
def test_rotary_dim(came):
    with refused(ValueError, f"rotary_dim: got {came!r}; expected an int of at least 2"):
        make(RotaryEmbedding, rotary_dim=came)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, 10), (8, 9), (8, 3), (7, 8), (7, None)])
def test_rotary_dim_beside_head_dim(head_dim, rotary_dim):
    came = head_dim if rotary_dim is None else rotary_dim
    said = f"rotary_dim: got {came} with head_dim={head_dim}; expected an even number of features, at most {head_dim}"
    with refused(ValueError, said):
        make(RotaryEmbedding, head_dim=head_dim, rotary_dim=rotary_dim)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}
LISTS = {"short_factor": [1.0, 1.0, 1.5, 2.0], "long_factor": [1.0, 2.0, 3.0, 4]}
LONGROPE = {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 64, "factor": 4.0}
NUMBERS = [
    (scaling, name)
    for scaling in (LINEAR, DYNAMIC, YARN, LONGROPE, LLAMA3)
    for name in scaling
    if name not in ("rope_type", *LISTS)
]
ABOVE_0 = "expected a finite number above 0"


@pytest.mark.parametrize("came", ["linear", 2.0, True, {}, [("rope_type", "linear")]], ids=repr)
def test_rotary_scaling_without_a_type(came):
    said = f"scaling: got {came!r}; expected None, or a dict with 'rope_type' and what it takes"
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling=came)


def test_rotary_scaling_of_an_older_config():
    said = (
        "scaling: got {'type': 'linear', 'factor': 2.0}; expected None, or a dict with 'rope_type' and what it takes; "
        "name the 'type' of an older config 'rope_type'"
    )
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling={"type": "linear", "factor": 2.0})


@pytest.mark.parametrize("came", [0, -1.0, NAN, INF, "2", True, [2]], ids=repr)
def test_rotary_scaling_whose_attention_factor_is_no_number(came):
    with refused(ValueError, f"scaling['attention_factor']: got {came!r}; {ABOVE_0}"):
        make(RotaryEmbedding, scaling={**YARN, "attention_factor": came})


def test_rotary_scaling_whose_attention_factor_is_not_given():
    """None, as configs have it."""
    query = torch.randn(1, 1, 4, 8)
    given, left_out = (make(RotaryEmbedding, scaling=one) for one in ({**YARN, "attention_factor": None}, YARN))
    assert torch.equal(
        given.prepare_keys(query, ContiguousPositions(0)), left_out.prepare_keys(query, ContiguousPositions(0))
    )


@pytest.mark.parametrize("came", ["default", "proportional", "YaRN", None, ["linear"], 1], ids=repr)
def test_rotary_scaling_of_another_type(came):
    said = f"scaling['rope_type']: got {came!r}; expected one of 'linear', 'dynamic', 'yarn', 'longrope', 'llama3'"
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling={"rope_type": came, "factor": 2.0})


@pytest.mark.parametrize(
    ("scaling", "missing"),
    [*((LONGROPE, name) for name in LISTS), *(one for one in NUMBERS if one != (LONGROPE, "factor"))],
)
def test_rotary_scaling_that_lacks_a_number(scaling, missing):
    came = {name: value for name, value in scaling.items() if name != missing}
    said = f"scaling: got {came!r}; expected {missing!r} in it for rope_type {came['rope_type']!r}"
    if (scaling, missing) == (DYNAMIC, "original_max_position_embeddings"):
        said += "; it is the config's max_position_embeddings"
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling=came)


@pytest.mark.parametrize("nothing", [{}, {"factor": None}, {"factor": None, "attention_factor": None}])
def test_longrope_without_a_factor(nothing):
    """transformers takes it from the config around the scaling."""
    came = {name: value for name, value in LONGROPE.items() if name != "factor"}
    said = (
        f"scaling: got {came!r}; expected 'factor' or 'attention_factor' in it for rope_type 'longrope'; "
        "factor is the config's max_position_embeddings / original_max_position_embeddings"
    )
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling={**came, **nothing})


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("came", [None, 2.0, "1234", [1.0] * 3, [1.0] * 5, [], np.ones(4)], ids=repr)
def test_longrope_by_another_list(name, came):
    said = f"scaling[{name!r}]: got {came!r}; expected a list of 4 numbers, one for each pair of features"
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling={**LONGROPE, name: came})


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("came", [0, -1.0, NAN, INF, "2", True, None, [2], 10**400], ids=lambda v: repr(v)[:9])
def test_longrope_by_a_list_of_no_numbers(name, came):
    shown = "an int of 1329 bits" if came == 10**400 else repr(came)
    with refused(ValueError, f"scaling[{name!r}][2]: got {shown}; {ABOVE_0}"):
        make(RotaryEmbedding, scaling={**LONGROPE, name: [1.0, 1.0, came, 1.0]})


def test_longrope_of_a_length_that_has_no_logarithm():
    said = (
        "scaling['original_max_position_embeddings']: got 1; expected a number above 1 for rope_type "
        "'longrope'; or give attention_factor"
    )
    came = {**LONGROPE, "original_max_position_embeddings": 1}
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling=came)
    make(RotaryEmbedding, scaling={**came, "attention_factor": 1.5})


@pytest.mark.parametrize(
    ("scaling", "extra", "way_out"),
    [
        (LINEAR, "beta_fast", ""),
        (LINEAR, "attention_factor", ""),
        (LLAMA3, "attention_factor", ""),
        (DYNAMIC, "attention_factor", ""),
        (DYNAMIC, "short_factor", ""),
        (LONGROPE, "beta_fast", ""),
        (LLAMA3, "truncate", ""),
        (YARN, "low_freq_factor", ""),
        (YARN, "type", ""),
        (YARN, "mscale", ", and give attention_factor"),
        (YARN, "mscale_all_dim", ", and give attention_factor"),
        (LLAMA3, "rope_theta", ", and give base"),
        (LINEAR, "partial_rotary_factor", ", and give rotary_dim"),
    ],
)
def test_rotary_scaling_with_a_key_too_many(scaling, extra, way_out):
    kind = scaling["rope_type"]
    said = f"scaling: got {extra!r}; expected only keys that rope_type {kind!r} has; leave it out{way_out}"
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling={**scaling, extra: 1.0})


@pytest.mark.parametrize("came", [0, -1, 0.0, NAN, INF, "2", True, None, [2]], ids=repr)
@pytest.mark.parametrize(
    ("scaling", "name"),
    [*NUMBERS, *((YARN, name) for name in ("beta_fast", "beta_slow"))],
)
def test_rotary_scaling_by_no_number(scaling, name, came):
    if (name, came) == ("factor", None) and scaling is LONGROPE:
        return  # as configs have it: see test_longrope_without_a_factor
    with refused(ValueError, f"scaling[{name!r}]: got {came!r}; {ABOVE_0}"):
        make(RotaryEmbedding, scaling={**scaling, name: came})


@pytest.mark.parametrize(
    ("came", "said"),
    [
        ({**DYNAMIC, "factor": 0.5}, "scaling['factor']: got 0.5; expected at least 1 for rope_type 'dynamic'"),
        ({**LONGROPE, "factor": 0.5}, "scaling['factor']: got 0.5; expected at least 1 for rope_type 'longrope'"),
        ({**YARN, "factor": 0.5}, "scaling['factor']: got 0.5; expected at least 1 for rope_type 'yarn'"),
        ({**LLAMA3, "factor": 0.5}, "scaling['factor']: got 0.5; expected at least 1 for rope_type 'llama3'"),
        (
            {**YARN, "beta_fast": 2, "beta_slow": 2},
            "scaling['beta_slow']: got 2 with beta_fast=2; expected a number below beta_fast",
        ),
        (
            {**YARN, "beta_slow": 40},
            "scaling['beta_slow']: got 40 with beta_fast=32.0; expected a number below beta_fast",
        ),
        (
            {**LLAMA3, "low_freq_factor": 5.0},
            "scaling['low_freq_factor']: got 5.0 with high_freq_factor=4.0; expected a number below high_freq_factor",
        ),
        ({**YARN, "ramp": "index"}, "scaling['ramp']: got 'index'; expected one of 'pairs', 'rotations'"),
        (
            {**YARN, "ramp": "rotations", "truncate": True},
            "scaling['truncate']: came with ramp='rotations', which has no pairs to round; leave it out",
        ),
    ],
)
def test_rotary_scaling_that_contradicts_itself(came, said):
    with refused(ValueError, said):
        make(RotaryEmbedding, scaling=came)


def test_rotary_scaling_truncate():
    with refused(TypeError, "scaling['truncate']: got 1; expected True or False"):
        make(RotaryEmbedding, scaling={**YARN, "truncate": 1})


@pytest.mark.parametrize(
    "came",
    [
        [1.0] * 3, [1.0] * 5, [], 1.0, "1234", {1: 2}, [1.0, 0.0, 1.0, 1.0], [1.0, -1.0, 1.0, 1.0],
        [1.0, NAN, 1.0, 1.0], [INF] * 4, ["1"] * 4, [True] * 4, [None] * 4, np.ones((2, 2)), torch.ones(3),
    ],
    ids=repr,
)  # fmt: skip
def test_alibi_slopes(came):
    said = (
        f"slopes: got {came!r}; expected 4 finite numbers above 0, one for each head; leave it out for those of the "
        "paper"
    )
    for learned in (False, True):
        with refused(ValueError, said):
            make(AlibiBias, slopes=came, learned=learned)


@pytest.mark.parametrize("came", ["Log", "linear", None, 1, True, ["log"]], ids=repr)
def test_kerple_kind(came):
    with refused(ValueError, f"kind: got {came!r}; expected one of 'log', 'power'"):
        make(KerpleBias, kind=came)


def test_sandwich_width():
    with refused(ValueError, "width: got 7; expected an even width, a sine and a cosine for each frequency"):
        make(SandwichBias, width=7)


@pytest.mark.parametrize("came", [None, 1, "cos", [torch.cos]], ids=["None", "a number", "a name", "a list"])
def test_function(came):
    with refused(TypeError, f"function: got {came!r}; expected a Module or a function of the offsets"):
        FunctionBias(came, 4)


@pytest.mark.parametrize("came", NO_SIZES, ids=repr)
def test_heads_of_a_function(came):
    with refused(ValueError, f"num_heads: got {came!r}; expected an int of at least 1"):
        FunctionBias(torch.cos, came)


HUGE = 10**12
ALL_IN_MEMORY = "expected a size whose parameters fit into memory; make it smaller"


@pytest.mark.parametrize(
    ("encoding", "changes", "said"),
    [
        (RelativeEmbedding, {"max_length": HUGE}, f"max_length: got {HUGE} with head_dim=8, num_heads=1"),
        (RelativeEmbedding, {"max_length": 10**400}, "max_length: got an int of 1329 bits with head_dim=8..."),
        (RelativeEmbedding, {"head_dim": 2**62}, f"head_dim: got {2**62} with max_length=4, num_heads=1"),
        (ShawEmbedding, {"max_distance": (3, HUGE)}, f"max_distance: got {HUGE} with head_dim=8, num_heads=1"),
        (KeyQueryEmbedding, {"max_length": HUGE}, f"max_length: got {HUGE} with head_dim=8, num_heads=1"),
        (TransformerXLEmbedding, {"max_length": HUGE}, f"max_length: got {HUGE} with num_heads=4, head_dim=8"),
        (TransformerXLEmbedding, {"embed_dim": 4 * HUGE}, f"embed_dim: got {4 * HUGE} with num_heads=4, head_dim=8"),
        (TransformerXLEmbedding, {"num_heads": 10**15}, f"num_heads: got {10**15} with head_dim=8"),
        (T5Bias, {"num_heads": 10 * HUGE}, f"num_heads: got {10 * HUGE} with num_buckets=32"),
        (AlibiBias, {"num_heads": 10**15, "learned": True}, f"num_heads: got {10**15}"),
        (KerpleBias, {"num_heads": 10**15}, f"num_heads: got {10**15}"),
        (DisentangledEmbedding, {"max_distance": HUGE}, f"max_distance: got {HUGE} with embed_dim=32"),
        (DisentangledEmbedding, {"num_heads": 10**15, "embed_dim": 8}, f"num_heads: got {10**15} with head_dim=8..."),
    ],
)  # fmt: skip
def test_a_table_that_no_memory_holds(encoding, changes, said):
    with refused(ValueError, f"{said}; {ALL_IN_MEMORY}"):
        make(encoding, **changes)


def test_another_failure_than_memory_keeps_its_own_words(monkeypatch):
    """A device that is not there has nothing to do with the size."""

    def fail(*size):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(torch, "empty", fail)
    with refused(RuntimeError, "the device is gone"):
        make(RelativeEmbedding)


def test_the_contract_is_abstract():
    with refused(TypeError, "Can't instantiate abstract class RelativeEncoding...terms..."):  # Python 3.12 says more
        RelativeEncoding()


def test_an_unknown_name_of_the_package():
    with refused(AttributeError, "module 'relattn' has no attribute 'RelativeEmbeding'"):
        relattn.RelativeEmbeding  # noqa: B018

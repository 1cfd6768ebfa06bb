"""The catalogue: one name, one meaning, wherever it is used."""

from pathlib import Path

import pytest
import torch

import relattn
from relattn.cli import app as commands
from relattn.cli.bench import workload
from relattn.cli.bench.case import make_case
from relattn.cli.bench.workload import Workload
from relattn.convert import layers
from relattn.encodings.catalogue import CATALOGUE, Layer, name_of
from relattn_lab import encodings as lab
from relattn_lab.cli import app as lab_app
from tests.convert.cases import CASES

CAUSAL, BOTH = (Layer(num_heads=2, head_dim=8, length=100, causal=causal) for causal in (True, False))
PROJECTED = [("weight", (16, 16)), ("bias", (16,))]
MODULES = [name for name, entry in CATALOGUE.items() if entry.kind]


@pytest.mark.parametrize("layer", [CAUSAL, BOTH])
@pytest.mark.parametrize("name", MODULES)
def test_what_a_name_builds_has_that_name(name, layer):
    assert name_of(CATALOGUE[name].build(layer)) == name


@pytest.mark.parametrize("name", CATALOGUE)
def test_bench_and_lab_mean_the_same_by_a_name(name):
    """The same class, shared by as many heads; what differs are lengths and edges, which the lab says."""
    if name not in workload.ENCODINGS or name not in lab.ENCODINGS or CATALOGUE[name].kind is None:
        others = ("none", "sinusoid", "key-query", "disentangled", "kerple", "kerple-power", "sandwich")
        assert name in (*others, "relative+pitch+time", "sinusoid+voice")
        return
    benched = make_case(Workload(name, 100, 8, 2, causal=True, mode="forward")).encoding
    trained = lab.build_encoding(name, CAUSAL, lab.lab_options(name, 100))
    assert name_of(benched) == name_of(trained) == name
    shapes = [{key: value.shape[0] for key, value in encoding.state_dict().items()} for encoding in (benched, trained)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("relative", {"relative_keys": (1, 100, 8)}),
        ("relative-heads", {"relative_keys": (2, 100, 8)}),
        (
            "relative+pitch+time",
            {
                "operands.0.relative_keys": (1, 100, 8),
                "operands.1.encoding.relative_keys": (1, 100, 8),
                "operands.2.encoding.relative_keys": (1, 255, 8),
            },
        ),
        ("shaw", {"relative_keys": (1, 33, 8), "relative_values": (1, 33, 8)}),
        ("shaw-keys", {"relative_keys": (1, 33, 8)}),
        ("key-query", {"relative_embeddings": (1, 199, 8)}),
        (
            "disentangled",
            {
                "relative_embeddings": (1024, 16),
                **{f"pos_{side}_proj.{name}": shape for side in ("key", "query") for name, shape in PROJECTED},
            },
        ),
    ],
)
def test_what_the_catalogue_s_own_options_are(name, shapes):
    encoding = CATALOGUE[name].build(CAUSAL)
    assert {key: tuple(value.shape) for key, value in encoding.named_parameters()} == shapes


def test_rows_follow_the_direction():
    assert CATALOGUE["relative"].build(BOTH).relative_keys.shape == (1, 199, 8)
    assert CATALOGUE["t5"].build(BOTH).bidirectional
    assert not CATALOGUE["t5"].build(CAUSAL).bidirectional


@pytest.fixture(scope="module")
def converted_names() -> set[str]:
    """The names of all that `relattn convert` finds in checkpoints of every format."""
    found = (layers(case.checkpoint(), case.source).values() for case in CASES.values())
    names = {name_of(layer.encoding) for layers_of_one in found for layer in layers_of_one}
    return names | {name_of(relattn.T5Bias(2))}  # of x-transformers, whose checkpoints tests/peers makes


def test_what_convert_finds_are_entries_of_the_catalogue(converted_names):
    assert converted_names <= set(MODULES)


def test_what_has_no_name_is_called_by_its_class():
    table = relattn.RelativeEmbedding(8, 4)
    for other in (
        relattn.AlibiBias(2) + table,
        table + table,
        table + table.on("time"),
        table + table.on("pitch") + table.on("time"),
        table + table.on("time") + table.on("pitch") + table,
        table + table.on("time") + relattn.AlibiBias(2).on("pitch"),
        table + table.on("time") + relattn.RelativeEmbedding(8, 4, num_heads=2).on("pitch"),
    ):
        assert name_of(other) == "EncodingSum"
    assert name_of(table + table.on("time") + table.on("pitch")) == "relative+pitch+time"

    class Mine(relattn.AlibiBias):
        pass

    assert name_of(Mine(2)) == "Mine"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("t5", {"colour": 1}, "encoding_options: got {'colour': 1}; expected what the encoding 't5' takes ("),
        ("none", {"colour": 1}, "encoding_options: got {'colour': 1}; expected none for the encoding 'none'"),
        (
            "relative",
            {"num_heads": 2},
            "encoding_options: got {'num_heads': 2}; expected what leaves the encoding 'relative': with these it is "
            "'relative-heads'; give that name",
        ),
        (
            "shaw",
            {"values": False},
            "encoding_options: got {'values': False}; expected what leaves the encoding 'shaw'",
        ),
    ],
)
def test_options_that_do_not_suit_a_name(name, options, said):
    with pytest.raises(ValueError) as caught:
        CATALOGUE[name].build(CAUSAL, **options)
    assert str(caught.value).startswith(said)


def test_options_go_over_the_catalogue_s():
    assert CATALOGUE["relative"].build(CAUSAL, max_length=10).max_length == 10
    assert CATALOGUE["t5"].build(CAUSAL, num_buckets=8).num_buckets == 8


def test_every_help_text_lists_its_names():
    for command, names in ((lab_app.compare, lab.ENCODINGS), (commands.bench, workload.ENCODINGS)):
        text = " ".join(command.__doc__.split())
        for name in names:
            assert name in text.partition("Encodings: ")[2].partition(";")[0], name


def test_nothing_is_built_in_memory_that_is_only_checked():
    with torch.device("meta"):
        assert CATALOGUE["relative"].build(Layer(2, 8, 2**31 - 4, causal=True)).relative_keys.is_meta


PAGE = Path(__file__).parent.parent / "docs" / "catalogue.md"


def test_the_page_says_what_the_catalogue_says(converted_names):
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    rows = {cells[0].strip("`"): cells[1:] for cells in ([c.strip() for c in line.split("|")[1:-1]] for line in lines)}
    assert list(rows) == list(CATALOGUE)
    for name, entry in CATALOGUE.items():
        meaning, kind, source, compared, benched, converted = rows[name]
        assert meaning.startswith((entry.meaning, "the same, a table for each head"))
        assert entry.kind is None or entry.kind.__name__ in kind
        assert source in (entry.source, "the same")
        assert (compared == "yes") == (name in lab.ENCODINGS)
        assert (benched == "yes") == (name in workload.ENCODINGS)
        assert (converted == "yes") == (name in converted_names)

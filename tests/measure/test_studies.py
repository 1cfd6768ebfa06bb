"""The studies of `python -m measure NAME` at tiny sizes: what they measure, keep and show, and what stops them."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from measure.__main__ import app
from measure.candidates import CANDIDATES
from measure.settings import Settings
from measure.studies import catalogue, cost_per_pair, ratios, study
from measure.studies.catalogue import CATALOGUE, GRIDS, study_of
from measure.studies.study import Study, carry_out, figures_of, shown
from measure.studies.workloads import TABLES
from relattn.cli.bench import timing
from relattn.cli.bench.timing import Spread, Timing
from relattn_lab.support.progress import Silent

ONE = Spread(1.5, 1.5, 1.5)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(timing, "MOST_ROUNDS", 1)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def rows_of(page):
    """The rows of a page's table, cell by cell."""
    lines = [line for line in page.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def call(*arguments):
    ran = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.exit_code, ran.stdout, " ".join(ran.stderr.split())


@pytest.fixture
def counted(monkeypatch):
    """A study of two measurements, and the calls of each; the first measurement fails while `failing` holds."""
    calls, failing = [], []

    def first():
        calls.append("first")
        if failing:
            raise KeyboardInterrupt
        return {"ratio": [1.0, 0.9, 1.2]}

    def second():
        calls.append("second")
        return {"ratio": [2.0, 1.99, 2.01]}

    def table(figures):
        return study.table(
            {"call": "---", "time": "---:"}, [[key, shown(one["ratio"])] for key, one in figures.items()]
        )

    made = Study("What they share.", {"second": second, "first": first}, table, threads=1)
    monkeypatch.setattr(study, "study_of", lambda name: made)
    return calls, failing


def test_a_study_writes_its_figures_and_its_page(counted, tmp_path):
    page = carry_out("small", tmp_path, Silent())
    assert page == (tmp_path / "small.md").read_text()
    assert page.startswith("# What a small call costs\n\nWhat they share.\n\n```sh\npython -m measure small\n```\n\n20")
    assert "threads: 1; relattn " in page
    assert rows_of(page) == [["second", "2.00"], ["first", "1.00 ±0.15"]]
    kept = json.loads((tmp_path / "small.json").read_text())
    assert kept["figures"] == {"second": {"ratio": [2.0, 1.99, 2.01]}, "first": {"ratio": [1.0, 0.9, 1.2]}}
    assert (kept["format"], kept["study"], kept["machine"]["torch_threads"]) == (1, "small", 1)


def test_an_interrupted_study_goes_on(counted, tmp_path):
    calls, failing = counted
    failing.append(True)
    code, _, told = call("small", "--out", tmp_path)
    assert code == 130
    assert "stopped; what was measured is kept in" in told
    assert list(json.loads((tmp_path / "small.json").read_text())["figures"]) == ["second"]
    failing.clear()
    code, printed, told = call("small", "--out", tmp_path)
    assert code == 0
    assert "small: What a small call costs; loading PyTorch" in told
    assert "# What a small call costs" in printed
    assert calls == ["second", "first", "first"]


@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        ("machine", "processor", "Abacus", "which was begun with processor Abacus; expected"),
        ("versions", "abacus", "1", "which was begun with abacus 1; expected None, as here"),
    ],
)
def test_figures_of_another_machine_or_version_are_not_mixed(counted, tmp_path, part, key, value, said):
    carry_out("small", tmp_path, Silent())
    path = tmp_path / "small.json"
    kept = json.loads(path.read_text())
    kept[part][key] = value
    path.write_text(json.dumps(kept))
    code, _, told = call("small", "--out", tmp_path)
    assert code == 2
    assert f"error: --out: got {path}, {said}" in told
    assert "remove the file to measure all of it again" in told


@pytest.mark.parametrize("broken", ["{", "[]", '{"format": 1}', '{"format": 1, "study": "swin"}'])
def test_a_damaged_file_is_refused(counted, tmp_path, broken):
    (tmp_path / "small.json").write_text(broken)
    code, _, told = call("small", "--out", tmp_path)
    assert code == 2
    assert f"error: --out: got {tmp_path / 'small.json'}, which holds no figures of the study 'small'; expected" in told


def test_a_stop_before_the_first_measurement_says_so(counted, tmp_path, monkeypatch):
    _, failing = counted
    failing.append(True)
    monkeypatch.setattr(study, "_begun", lambda name, made, folder: study.Kept(name, "", {}, {}, {"second": {}}))
    code, _, told = call("small", "--out", tmp_path)
    assert code == 130
    assert told.endswith("stopped; nothing was measured yet")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["smal"], "error: study: got 'smal'; expected one of 'relative', 'relative-causal',"),
        (
            ["small", "--lengths", "3", "--head-dims", "8"],
            "error: study: got 'small' with --lengths, --head-dims; expected a study alone, for it has its own "
            "settings;",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(tmp_path, arguments, said):
    code, printed, told = call(*arguments, "--out", tmp_path / "out")
    assert (code, printed) == (2, "")
    assert said in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_study_can_be_made_and_is_named_by_the_command(name):
    made = study_of(name)
    assert made.measurements
    assert made.setting.endswith(".")
    help_text = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout.split())
    assert f" {name}: " in help_text


@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_is_one_and_is_named_by_the_command(name):
    assert list(Settings(**GRIDS[name].settings).workloads())
    assert set(GRIDS[name].candidates) <= set(CANDIDATES)
    help_text = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout.split())
    assert f" {name}: " in help_text


@pytest.mark.slow
def test_a_grid_is_measured_into_its_own_folder(tmp_path, monkeypatch):
    few = catalogue.Grid(
        "x",
        {
            "encodings": ("t5",),
            "lengths": (16,),
            "causal": ("yes",),
            "heads": (2,),
            "head_dims": (8,),
            "seconds": 0.001,
            "device": "cpu",
        },
        ("sdpa, no encoding", "plain"),
    )
    monkeypatch.setitem(GRIDS, "t5", few)
    code, _, told = call("t5", "--out", tmp_path)
    assert code == 0
    assert told.startswith("t5: x; loading PyTorch")
    kept = json.loads((tmp_path / "t5" / "results.json").read_text())
    assert {m["candidate"] for m in kept["measurements"]} == set(few.candidates)


@pytest.mark.parametrize(
    ("spread", "said"),
    [((1.0, 0.96, 1.05), "1.00"), ((1.0, 0.94, 1.05), "1.00 ±0.06"), ((1.0, 0.98, 1.2), "1.00 ±0.11")],
)
def test_a_spread_over_a_tenth_is_said(spread, said):
    assert shown(figures_of(Spread(*spread))) == said


@pytest.mark.parametrize(
    ("goal", "found", "said"),
    [
        (None, {512: 9.0}, ("", "")),
        (1.0, {512: 0.9, 1024: 1.0, 2048: 1.1}, ("1.00", "met")),
        (1.0, {512: 0.9, 1024: 1.0, 2048: 1.11}, ("1.00", "missed at 2048")),
        (1.0, {512: 0.9, 1024: 1.05, 2048: 1.06}, ("1.00", "missed by 5%")),
        (1.0, {512: 1.2, 1024: 1.2, 2048: 1.0}, ("1.00", "missed by 20% and at 512, 1024")),
        ({16: 4.0, 64: 2.0}, {16: 4.0, 64: 2.0}, ("4 / 2", "met")),
        ({16: 4.0, 64: 2.0}, {16: 3.0, 64: 2.1}, ("4 / 2", "missed at 64")),
        ({16: 4.0, 64: 2.0}, {64: 2.1}, ("2", "missed at 64")),
    ],
)
def test_a_goal_bounds_the_median_and_nearly_every_length(goal, found, said):
    assert ratios.verdict(goal, found) == said


def test_every_row_is_another_workload_and_every_length_has_a_goal():
    for table in TABLES.values():
        assert len({row.workload for row in table.rows}) == len({row.key for row in table.rows}) == len(table.rows)
        assert all(set(table.lengths) <= set(row.goal) for row in table.rows if isinstance(row.goal, dict))


def test_rows_with_a_goal_have_their_projection_apart():
    projected = ("transformer-xl", "disentangled")
    rows = [row for row in TABLES["encodings"].rows if row.workload.encoding in projected]
    assert {(row.goal is None, row.workload.lowered, "projection" in row.name) for row in rows} == {
        (False, True, False),
        (True, False, True),
    }


@pytest.mark.slow
def test_a_table_of_ratios_is_measured_and_shown():
    table = TABLES["encodings"]
    rows = [row for row in table.rows if row.name in ("relative", "alibi")]
    asked = table._replace(rows=rows, lengths=(24, 32))
    figures = {row.key: ratios.measured(row.workload, asked, 0.001) for row in rows}
    assert all(list(found) == ["24", "32"] and found["24"][0] > 0 for found in figures.values())
    shown_rows = rows_of(ratios.markdown(asked, figures))
    assert [row[:2] for row in shown_rows] == [[row.name, row.what] for row in rows]
    assert all(len(row) == 7 and float(row[5]) > 0 for row in shown_rows)


def test_a_window_s_ratio_is_over_its_share_of_the_pairs(monkeypatch):
    monkeypatch.setattr(ratios, "checked", lambda who, workload: None)
    monkeypatch.setattr(ratios, "timed", lambda who, workload, seconds: Timing(ONE, ONE, None, 15, 1))
    table = TABLES["window"]
    found = [ratios.measured(row.workload, table)["8192"][0] for row in table.rows if row.name.startswith("relative")]
    full, causal = (8192**2, 8192 * 8193 // 2)
    shares = [(8192 * 513 - 256 * 257) / full, (8192 * 257 - 256 * 257 // 2) / causal]
    assert found == pytest.approx([1.5 / share for share in (shares[0], shares[0], shares[1], shares[1])], rel=1e-3)


@pytest.mark.slow
def test_a_wrong_answer_stops_it(monkeypatch):
    right = CANDIDATES["relattn native"]
    wrong = replace(right, prepare=lambda case: right.prepare(replace(case, value=case.key, key=case.value)))
    monkeypatch.setattr(ratios, "candidate", lambda backend: wrong)
    table = TABLES["batches"]
    with pytest.raises(RuntimeError, match="output is off by"):
        ratios.measured(table.rows[0].workload, table)


def test_cost_per_pair_of_a_clock_that_counts_pairs(monkeypatch):
    """Time in proportion to the pairs costs the same at every length; a tenth and more above it misses."""
    monkeypatch.setattr(cost_per_pair, "checked", lambda who, workload: None)

    def beside(workload, reference, length, seconds):
        spent = [8e-12 * workload.heads * ratios.pairs(workload.at(each)) for each in (reference, length)]
        ratio = spent[1] / spent[0] * (1.12 if length == 32768 and workload.causal else 1.0)
        return Timing(Spread(*[ratio * spent[0]] * 3), Spread(*[ratio] * 3), None, 15, 1)

    monkeypatch.setattr(cost_per_pair, "beside", beside)
    made = cost_per_pair.study("cost-per-pair")
    rows = rows_of(made.table({key: measure() for key, measure in made.measurements.items()}))
    assert [row[3:] for row in rows] == 2 * (2 * [["8", "1.00", "met"]] + 2 * [["8", "1.12", "missed"]])
    assert rows[0][2] == "1,024: 1.00; 2,048: 1.00; 8,192: 1.00; 16,384: 1.00; 32,768: 1.00"


def test_cost_per_pair_measures():
    row = next(iter(cost_per_pair.ROWS.values()))[0]
    found = cost_per_pair.measured(row.workload, 24, (16,), 0.001)
    assert found["ratios"]["16"][0] > 0
    assert found["picoseconds"] > 0


def test_small_numbers_and_layers_measure():
    from measure.studies import layer_decoding, small_numbers

    assert small_numbers.exponential("exp2", -95.0, 0.001)["ratio"][0] > 0
    assert small_numbers.product(1e-39, 0.001)["ratio"][0] > 0
    assert layer_decoding.measured("shaw", 1, "float32", 0.001, held=20)["ratio"][0] > 0
    layers = {key: {"ratio": [1.5, 1.5, 1.5]} for key in layer_decoding.study("layer-decoding").measurements}
    assert rows_of(layer_decoding.markdown(layers))[0] == ["none", *["1.50"] * 4]


@pytest.mark.slow
def test_dropout_and_memory_measure():
    from measure.studies import dropout, held

    tiny = replace(dropout.WORKLOAD, length=24)
    assert rows_of(dropout.markdown({name: dropout.measured(name, tiny, 0.001) for name in dropout.BACKENDS}))
    row = held.ROWS[0]
    assert held.measured(row.workload.at(64))["mib"] >= 0
    made = held.study("memory")
    rows = rows_of(made.table({key: {"mib": number} for number, key in enumerate(made.measurements)}))
    assert rows[0] == ["forward", *map(str, range(len(held.LENGTHS)))]


@pytest.mark.slow
def test_hidden_blocks_measure():
    from measure.studies import hidden_blocks

    for name in ("packed", "padded"):
        rows = hidden_blocks.rows_of(name)
        figures = {key: hidden_blocks.measured(row, 0.001, shorter=64) for key, row in rows.items()}
        assert all(found["ratio"][0] > 0 for found in figures.values())
        for ratio, met in ((0.467, "met"), (1.5, "missed")):
            shown = rows_of(hidden_blocks.markdown(rows, {key: {"ratio": [ratio] * 3} for key in rows}))
            assert [row[:3] for row in shown] == [list(row) for row in rows.values()]
            assert {row[-1] for row in shown} == {met}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_keras_measures(monkeypatch):
    from measure.studies import keras_steps

    monkeypatch.setattr(keras_steps, "WAYS", ("naive", "default"))
    found = {"jax, 64": keras_steps.measured("jax", 64)}
    assert [row[:3] for row in rows_of(keras_steps.markdown(found))] == [
        ["jax", "64", "naive"],
        ["jax", "64", "default"],
    ]
    monkeypatch.setattr(keras_steps, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match="study: got 'keras' without keras; expected keras, tensorflow, jax, torch; pip"
    ):
        keras_steps.measured("jax", 64)


def test_what_counting_needs_is_named(monkeypatch):
    from measure.studies import instructions

    monkeypatch.setattr(instructions.shutil, "which", lambda name: None)
    with pytest.raises(
        FileNotFoundError, match="got 'instructions' without valgrind; expected valgrind, its headers and"
    ):
        instructions.measured()


@pytest.mark.slow
def test_first_use_measures():
    from measure.studies import first_use

    found = first_use.measured(first_use.CASES["no encoding"], processes=2)
    assert rows_of(first_use.markdown({"no encoding": found}))[0][0] == "no encoding"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["sam", "swin", "layoutlm"])
def test_axes_measure(name):
    from measure.studies import axes

    small = axes.TABLES[name][1]
    found = {
        f"{small}, {way}": axes.measured(name, small, way, 0.001) for way in ("transformers eager", "relattn native")
    }
    rows = rows_of(axes.markdown(found))
    assert [row[:2] for row in rows] == [[str(small), "transformers eager"], [str(small), "relattn native"]]
    assert all(row[2].isdigit() and row[4].isdigit() for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_models_measure(monkeypatch):
    from measure.studies import hugging_face, hugging_face_table

    monkeypatch.setattr(hugging_face, "SECONDS", 0.001)
    found = {"t5, 64, training": hugging_face.measured("t5", 64, "training")}
    assert found["t5, 64, training"]["pairs"] == timing.LEAST_PAIRS
    assert rows_of(hugging_face_table.markdown(True, found))[0][:3] == ["T5-base, encoder", "64 tokens", "training"]


@pytest.mark.parametrize(("seconds", "pairs"), [(3.7, 15), (3.8, None)])
def test_the_time_of_long_calls_is_not_taken(monkeypatch, seconds, pairs):
    from measure.studies import hugging_face

    monkeypatch.setattr(hugging_face, "memory", lambda *which: {"mib": 1, "seconds": seconds})
    monkeypatch.setattr(hugging_face, "times", lambda *which: {"ratio": [1.0, 1.0, 1.0], "pairs": 15})
    assert hugging_face.measured("t5", 512, "forward").get("pairs") == pairs
    assert hugging_face.measured("t5", 512, "forward")["patched"] == {"mib": 1, "seconds": seconds}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_devices_measure(monkeypatch):
    from measure.studies import devices

    monkeypatch.setattr(devices, "ALONE", ("native",))
    monkeypatch.setattr(devices, "CASES", ((2, "zigzag", "ring", None),))
    monkeypatch.setattr(devices, "LENGTH", 2048)
    made = devices.study("devices")
    rows = rows_of(made.table({key: measure() for key, measure in made.measurements.items()}))
    assert [row[:3] for row in rows] == [["1", "", "`native`"], ["2", "zigzag", "ring"]]
    sent, formula = rows[1][5:7]
    assert sent == formula

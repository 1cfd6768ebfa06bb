"""measure/gpu.py away from a GPU: what it says there, and the report that it would write."""

import pytest
import torch

from measure import gpu
from measure.measurements import Measurement, Results
from measure.settings import Settings
from relattn.cli.bench.relattn_candidates import FLOOR
from relattn.cli.bench.timing import Spread, Timing
from relattn.cli.bench.workload import Workload

RATIOS = {FLOOR: 1.0, gpu.OURS: 2.1, gpu.FLEX: 3.0}


def measured(**changes: object) -> Results:
    """A benchmark in which ours takes 2.1 times the floor, flex 3.0 times, and the fourth gave up."""
    found = Results(Settings(encodings=("relative", "alibi"), lengths=(64,), device="cpu", **changes))
    for workload in found.settings.workloads():
        for name, ratio in RATIOS.items():
            spread = Spread(ratio, ratio, ratio)
            found.measurements.append(Measurement(workload, name, timing=Timing(spread, spread, None, 15, 1)))
        found.measurements.append(Measurement(workload, gpu.AS_MASK, "needs more memory than there is"))
    return found


def test_a_goal_is_reached_missed_or_not_measured():
    rows = {(row[0].split(",")[0], row[0].split(", ")[2], row[1]): row[2:] for row in gpu.verdicts(measured())}
    assert rows["relative", "forward", FLOOR] == ["2.20", "2.10", "reached"]
    assert rows["alibi", "forward", FLOOR] == ["1.25", "2.10", "missed"]
    assert rows["relative", "training step", gpu.FLEX] == ["0.67", "0.70", "missed"]
    assert rows["relative", "training step", gpu.AS_MASK] == ["0.50", "", "needs more memory than there is"]


def test_the_report_has_every_part():
    long = [
        {"length": 1000, "heads": 1, "window": 8, "seconds": 1.5, "beyond": 2**30},
        {"length": 2000, "heads": 2, "window": None, "reason": "one step takes longer than 120 s"},
    ]
    host = [{"workload": "relative, forward", FLOOR: 0.125, gpu.OURS: 0.5}]
    text = gpu.report({"grid": measured(), "decoding": measured(modes=("decoding",))}, long, host)
    assert "| decoding one token |" not in text
    for said in ("## Grid", "## Decoding", "| 1,000 | 1 | 8 | 1.50 | 1.00 |", "| 2,000 | 2 | none | one step takes"):
        assert said in text
    assert "| relative, forward | 0.12 | 0.50 |" in text
    assert f"\n- {gpu.AS_MASK}, relative, causal, training step, " in text and ": needs more memory than there" in text


def test_the_host_is_measured_for_causal_calls_with_64_features(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Workload] = []

    def noted(name: str, workload: Workload) -> float:
        asked.append(workload)
        return 0.5

    monkeypatch.setattr(gpu, "_host_milliseconds", noted)
    rows = gpu.host_figures("cpu")
    assert [set(row) for row in rows] == [{"workload", *gpu.HOSTED}] * 6, "three encodings, forward and training"
    assert all(one.causal and one.head_dim == 64 for one in asked)


def test_the_report_names_what_was_not_measured():
    text = gpu.report({"grid": measured()})
    assert text.endswith("\nNot measured yet: decoding, peers, long sequences, the host.\n")
    assert "## Long sequences" not in text and "## The host" not in text


@pytest.mark.parametrize(
    ("beyond", "said"),
    [
        ({1000: 10, 2000: 20, 4000: 40}, "and 4,000 this memory grows as L^1.00; at most L^1.10 was asked: reached"),
        ({1000: 10, 2000: 40}, "grows as L^2.00; at most L^1.10 was asked: missed"),
        ({1000: 10}, "was not measured: that takes two lengths without a window"),
    ],
)  # fmt: skip
def test_how_memory_grows(beyond: dict[int, int], said: str) -> None:
    windowed = {"length": 9000, "heads": 1, "window": 8, "seconds": 1.5, "beyond": 10**9}
    refused = {"length": 8000, "heads": 2, "window": None, "reason": "one step takes longer than 120 s"}
    long = [{"length": length, "heads": 2, "window": None, "beyond": bytes} for length, bytes in beyond.items()]
    assert said in gpu.growth([windowed, refused, *long])


def test_the_grids_are_those_that_the_goals_speak_of():
    grids = list(gpu.settings("cpu").values())
    assert {mode for grid, _ in grids for mode in grid.modes} == {goal.mode for goal in gpu.GOALS}
    for goal in gpu.GOALS:
        speak_of_it = [
            grid
            for grid, candidates in grids
            if {gpu.OURS, goal.against} <= set(candidates) and goal.mode in grid.modes
        ]
        assert any(set(goal.encodings) <= set(grid.encodings) for grid in speak_of_it)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(SystemExit, match=r"measures a CUDA GPU; torch .* finds none here"):
        gpu.main()

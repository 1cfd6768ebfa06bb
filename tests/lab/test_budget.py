"""From minutes to steps."""

import pytest

from relattn_lab.budget import LEAST_STEPS, TRAINER_OVERHEAD, Cost, affordable_steps, measure, seconds_of
from relattn_lab.data_parallel import DataParallel
from relattn_lab.dataset import Dataset
from relattn_lab.support.progress import Silent
from tests.lab.small import SMALL, settings, write_data

COSTS = {"a": Cost(step=0.1, evaluation=10.0), "b": Cost(step=0.3, evaluation=20.0)}


@pytest.mark.parametrize(("minutes", "spent", "seeds"), [(5, 12.0, 1), (66, 30.0, 3), (0.8, 5.0, 1)])
def test_all_runs_with_their_evaluations_fill_the_time_and_no_more(minutes, spent, seeds):
    steps = affordable_steps(minutes, spent, seeds, COSTS)

    def seconds(steps):
        return spent + seeds * (30.0 + steps * 0.4 * TRAINER_OVERHEAD)

    assert seconds(steps) <= 60 * minutes < seconds(steps + 1)


def test_minutes_that_do_not_suffice_allow_the_fewest_steps():
    assert affordable_steps(0.5, 15.0, 1, COSTS) == LEAST_STEPS
    assert seconds_of(LEAST_STEPS, 15.0, 1, COSTS) == pytest.approx(45.0 + LEAST_STEPS * 0.4 * TRAINER_OVERHEAD)


@pytest.mark.slow
def test_a_step_and_the_evaluations_are_timed(tmp_path):
    dataset = Dataset.load(str(write_data(tmp_path / "small.json")), SMALL["length"], Silent())
    asked = settings("data")
    once, often = (measure(asked, "relative", dataset, validations, DataParallel()) for validations in (0, 1000))
    assert once.step > 0
    assert once.evaluation > 0
    assert often.evaluation > 10 * once.evaluation

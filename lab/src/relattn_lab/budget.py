"""From minutes to steps: how long a step and an evaluation of every encoding take here, measured."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from relattn_lab.data_parallel import DataParallel
from relattn_lab.dataset import Dataset
from relattn_lab.evaluate import TOKENS_PER_BATCH, evaluate
from relattn_lab.model import LabModel
from relattn_lab.optimizer import MuonAndAdamW
from relattn_lab.settings import Settings
from relattn_lab.windows import Windows

WARM_STEPS = 2
TIMED_SECONDS = 1.5
LEAST_STEPS = 20
"""Fewer say nothing of an encoding.

Where they do not fit into the minutes, nothing is trained unless the user asks for it.
"""
TRAINER_OVERHEAD = 1.08
"""What the training loop, its logs and checkpoints add to the bare step, measured at the default settings."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one training step and of the evaluations that a run makes besides."""

    step: float
    evaluation: float


def measure(settings: Settings, encoding: str, dataset: Dataset, validations: int, parallel: DataParallel) -> Cost:
    """Time the model of `settings` under one encoding: steps on tokens that mean nothing, and parts of the evaluations.

    A run evaluates the validation windows `validations` times, and the held-out ones once at each length. All processes
    call it, and measure alike.
    """
    torch.manual_seed(0)  # processes that split a window must have one encoding
    model = LabModel(settings.model_config(dataset.vocabulary.size, encoding))
    model.to("cuda" if torch.cuda.is_available() else "cpu")  # pyright: ignore[reportArgumentType]
    parallel.lay(model)
    evaluation = validations * _evaluation_seconds(model, dataset.validation, parallel)
    evaluation += sum(_evaluation_seconds(model, windows, parallel) for windows in dataset.held_out.values())
    return Cost(_step_seconds(model, settings, parallel), evaluation)


def affordable_steps(minutes: float, spent: float, seeds: int, costs: dict[str, Cost]) -> int:
    """The largest number of steps, the same for all runs, that `minutes` allow when `spent` seconds are gone.

    Never fewer than LEAST_STEPS: whether they fit, `seconds_of` tells.
    """
    rest = 60.0 * minutes - seconds_of(0, spent, seeds, costs)
    return max(math.floor(rest / _step_of_all(seeds, costs)), LEAST_STEPS)


def seconds_of(steps: int, spent: float, seeds: int, costs: dict[str, Cost]) -> float:
    """How long all runs of `steps` take with their evaluations, the `spent` seconds included."""
    evaluation = seeds * sum(cost.evaluation for cost in costs.values())
    return spent + evaluation + steps * _step_of_all(seeds, costs)


def _step_of_all(seeds: int, costs: dict[str, Cost]) -> float:
    return seeds * sum(cost.step for cost in costs.values()) * TRAINER_OVERHEAD


def _step_seconds(model: LabModel, settings: Settings, parallel: DataParallel) -> float:
    shape = settings.batch // parallel.groups, settings.length
    tokens = torch.randint(model.config.vocab_size, shape).numpy()
    part = parallel.part({"input_ids": tokens, "labels": tokens})
    inputs, labels, positions = (one.to(model.device) for one in (part.input_ids, part.labels, part.positions))
    optimizer = MuonAndAdamW(model, learning_rate=0.0, weight_decay=0.0)
    model.train()
    taken = 0
    start = time.perf_counter()
    while taken < WARM_STEPS + 1 or parallel.all_of(time.perf_counter() - start < TIMED_SECONDS, model.device):
        if taken == WARM_STEPS:
            start = time.perf_counter()
        model(inputs, shift_labels=labels, positions=positions).loss.backward()
        parallel.total(torch.nn.utils.parameters_to_vector(_gradients(model)))  # as long as what DDP sends
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        _synchronize()
        taken += 1
    return (time.perf_counter() - start) / (taken - WARM_STEPS)


def _gradients(model: LabModel) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _evaluation_seconds(model: LabModel, windows: Windows, parallel: DataParallel) -> float:
    """Seconds that `evaluate` takes over all windows, from two of its batches in every group of processes."""
    rows = parallel.groups * max(1, TOKENS_PER_BATCH // windows.labels.shape[1])
    few = Windows(*(getattr(windows, name)[:rows] for name in ("input_ids", "labels", "lengths", "piece", "start")))
    evaluate(model, few, parallel=parallel)
    start = time.perf_counter()
    evaluate(model, few, parallel=parallel)
    _synchronize()
    return (time.perf_counter() - start) * float(windows.lengths.sum() / few.lengths.sum())


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()

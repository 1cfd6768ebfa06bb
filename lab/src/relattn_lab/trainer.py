"""The Hugging Face Trainer over windows that processes share, and the watch that keeps its curves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from relattn_lab.config import LabConfig
from relattn_lab.data_parallel import DataParallel
from relattn_lab.evaluate import evaluate
from relattn_lab.optimizer import MuonAndAdamW
from relattn_lab.stopping import StopRequest
from relattn_lab.windows import IGNORED, Windows
from relattn_lab.writing import explain_unwritten

LOGS = 60
"""Entries of the training curve."""
VALIDATIONS = 12
"""Entries of the validation curve."""
TRAINING, VALIDATION = "training_loss", "validation_loss"
"""The curves in the trainer's history."""


class DivergedError(ValueError):
    """A loss that is not finite. All processes raise it at the same step, because they share the loss."""


class Watch(TrainerCallback, ExportableState):
    """Reports progress, keeps both curves, and stops at the end of a step when a signal has asked for it.

    The curves are stored in the trainer's own history. The sum for the next entry is stored in the state of its
    callbacks. So checkpoints hold both, and a resumed run makes the same entries as one that was never stopped.
    """

    def __init__(self, validation: Windows, parallel: DataParallel, steps: int, progress: Callable[[int, str], None]):
        self.validation, self.parallel, self.progress = validation, parallel, progress
        self.train_every, self.validate_every = max(1, steps // LOGS), max(1, steps // VALIDATIONS)
        self.note, self.asked = "", StopRequest()
        self.total, self.count = 0.0, 0
        self.tell: Callable[[dict[str, float]], None] = lambda entry: None
        self.steps, self.started, self.last = 0, 0.0, 0.0

    def state(self) -> dict:
        """What a checkpoint keeps: the losses since the last entry of the training curve."""
        return {"total": self.total, "count": self.count}

    def seconds_per_step(self) -> float | None:
        """Measured over the steps of this process."""
        return (self.last - self.started) / self.steps if self.steps else None

    def _enter(self, step: int, entry: dict[str, float], state: TrainerState) -> None:
        """Store an entry of a curve, and pass it on to the reporters."""
        state.log_history.append({"step": step, **entry})
        self.tell(entry)

    def add(self, loss: float) -> None:
        """The loss of a step on the training windows."""
        self.total, self.count = self.total + loss, self.count + 1

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Take up the entry that a checkpoint has begun."""
        self.started = time.perf_counter()
        before = (state.stateful_callbacks or {})[type(self).__name__]  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.total, self.count = before["total"], before["count"]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Make the entries that are due, and stop where a signal has asked for it."""
        step, last = state.global_step, state.global_step == state.max_steps
        if step % self.train_every == 0 or last:
            self._enter(step, {TRAINING: self.total / self.count}, state)
            self.total, self.count = 0.0, 0
        if step % self.validate_every == 0 or last:
            loss = evaluate(kwargs["model"], self.validation, parallel=self.parallel).mean
            _check_finite(loss, kwargs["model"].config, args.seed, step)
            self._enter(step, {VALIDATION: loss}, state)
            self.note = f"{loss:.3f} nats"
        self.progress(step, self.note)
        self.steps, self.last = self.steps + 1, time.perf_counter()
        if self.asked.signum is not None:
            control.should_save = True
            control.should_training_stop = True


class ParallelTrainer(Trainer):
    """The Trainer over windows in their order: each is a random draw already, a function of the seed and its index.

    A process takes its share of every step's windows, and its part of each. The loss of a step is the sum over all
    processes, divided by the tokens of all; DDP takes the mean of their gradients, so each multiplies its loss by their
    number. The Trainer's own context parallelism does not support position encodings, and is not used. Training ends at
    the first loss that is not finite. The Trainer itself would leave it out of its history and go on.
    """

    def __init__(self, watch: Watch, steps: list[list[int]], **arguments: Any) -> None:
        super().__init__(callbacks=[watch], **arguments)
        self.watch, self.parallel, self.steps = watch, watch.parallel, steps
        watch.tell = self._tell

    def _tell(self, entry: dict[str, float]) -> None:
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, entry)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None) -> torch.Tensor:
        """This process's share of the step's loss, times the number of processes."""
        tokens = self.parallel.total((inputs["shift_labels"] != IGNORED).sum())
        return model(**inputs, num_items_in_batch=tokens).loss * self.parallel.processes

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Raises DivergedError: where the step's loss is not finite."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        mean = (self.parallel.total(loss) / self.parallel.processes).item()
        _check_finite(mean, self.model.config, self.args.seed, self.state.global_step + 1)  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
        self.watch.add(mean)
        return loss

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """Muon and AdamW, at the rate and the decay of the arguments."""
        self.optimizer = MuonAndAdamW(self.model, self.args.learning_rate, self.args.weight_decay)  # pyright: ignore[reportArgumentType]
        return self.optimizer

    def get_train_dataloader(self) -> DataLoader:
        """This process's share of the windows, step by step."""
        return DataLoader(
            self.train_dataset,  # pyright: ignore[reportArgumentType]
            batch_sampler=self.steps,
            collate_fn=self._collate,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def _collate(self, examples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        part = self.parallel.part({name: np.stack([one[name] for one in examples]) for name in examples[0]})
        # the windows' labels are shifted already
        return {"input_ids": part.input_ids, "shift_labels": part.labels, "positions": part.positions}

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # the state file comes next, and says that the checkpoint is whole

    def _save_checkpoint(self, model, trial) -> None:
        config: Any = self.model.config  # pyright: ignore[reportOptionalMemberAccess]
        what = f"the checkpoint of {config.encoding}, seed {self.args.seed}, at step {self.state.global_step}"
        with explain_unwritten(what, Path(self.args.output_dir)):  # pyright: ignore[reportArgumentType]
            super()._save_checkpoint(model, trial)


def _check_finite(loss: float, config: LabConfig, seed: int, step: int) -> None:
    if not math.isfinite(loss):
        raise DivergedError(
            f"{config.encoding}, seed {seed}: got a loss of {loss} at step {step}; expected a finite one; the run has "
            "diverged: compare with a lower learning rate"
        )

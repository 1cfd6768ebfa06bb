"""One training run: the Hugging Face Trainer over seeded windows, with curves, checkpoints and a clean way to stop."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import ExportableState, PrinterCallback
from transformers.utils import logging as transformers_logging

from relattn.lab.config import LabConfig
from relattn.lab.evaluate import evaluate
from relattn.lab.material import Material
from relattn.lab.model import LabModel
from relattn.lab.windows import Windows
from relattn.lab.writing import kept

BETAS = (0.9, 0.98)
LOGS = 60
"""Entries of the training curve."""
VALIDATIONS = 12
"""Entries of the validation curve."""
TRAINING, VALIDATION = "training_loss", "validation_loss"
"""The curves in the trainer's history."""
CHECKPOINT_STATE = "trainer_state.json"
STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class TrainingPlan:
    """How every model of a comparison is trained: AdamW, warm-up then a cosine to zero, clipped gradients.

    `batch` is in windows over all devices; `warmup` a share of the steps; a checkpoint is written every `save_every`
    steps.
    """

    steps: int
    batch: int
    learning_rate: float
    warmup: float = 0.05
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    save_every: int = 100


@dataclass(frozen=True)
class Trained:
    """A trained model and how it came about.

    Curves are (step, nats per token): of the training windows, with dropout, averaged since the entry before; and of
    held-out windows. `seconds_per_step` is this process's, validation and checkpoints included; None when it took none.
    """

    model: LabModel
    training_curve: list[tuple[float, float]]
    validation_curve: list[tuple[float, float]]
    seconds_per_step: float | None


class _Watch(TrainerCallback, ExportableState):
    """Progress, both curves, and the stop that a signal asks for, at the end of a step.

    The curves lie in the trainer's own history, and what an entry has summed up so far in its callbacks' state, so that
    checkpoints carry both and a run that goes on makes the entries of one that was never stopped.
    """

    def __init__(self, validation: Windows, steps: int, progress: Callable[[int, str], None]):
        self.validation, self.progress = validation, progress
        self.train_every, self.validate_every = max(1, steps // LOGS), max(1, steps // VALIDATIONS)
        self.note, self.stop = "", False
        self.total, self.count = 0.0, 0
        self.steps, self.started, self.last = 0, 0.0, 0.0

    def state(self) -> dict:
        """What a checkpoint keeps: the losses since the last entry of the training curve."""
        return {"total": self.total, "count": self.count}

    def seconds_per_step(self) -> float | None:
        """Measured over the steps of this process."""
        return (self.last - self.started) / self.steps if self.steps else None

    def add(self, loss: float) -> None:
        """The loss of a step on the training windows."""
        self.total, self.count = self.total + loss, self.count + 1

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        self.started = time.perf_counter()
        before = (state.stateful_callbacks or {})[type(self).__name__]  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.total, self.count = before["total"], before["count"]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        step, last = state.global_step, state.global_step == state.max_steps
        if step % self.train_every == 0 or last:
            state.log_history.append({"step": step, TRAINING: self.total / self.count})
            self.total, self.count = 0.0, 0
        if step % self.validate_every == 0 or last:
            loss = evaluate(kwargs["model"], self.validation).mean
            _check_finite(loss, kwargs["model"].config, args.seed, step)
            state.log_history.append({"step": step, VALIDATION: loss})
            self.note = f"{loss:.3f} nats"
        self.progress(step, self.note)
        self.steps, self.last = self.steps + 1, time.perf_counter()
        if self.stop:
            control.should_save = True
            control.should_training_stop = True


class _SeededOrderTrainer(Trainer):
    """The Trainer over windows in their order: each is a random draw already, a function of the seed and its index.

    It ends at the first loss that is not finite, which the Trainer itself would leave out of its history and go on.
    """

    def __init__(self, watch: _Watch, **arguments: Any) -> None:
        super().__init__(callbacks=[watch], **arguments)
        self.watch = watch

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        mean = self.accelerator.reduce(loss.detach(), reduction="mean").item()  # pyright: ignore[reportAttributeAccessIssue]
        _check_finite(mean, self.model.config, self.args.seed, self.state.global_step + 1)  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
        self.watch.add(mean)
        return loss

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)  # pyright: ignore[reportArgumentType]

    def _save_checkpoint(self, model, trial) -> None:
        config: Any = self.model.config  # pyright: ignore[reportOptionalMemberAccess]
        what = f"the checkpoint of {config.encoding}, seed {self.args.seed}, at step {self.state.global_step}"
        with kept(what, Path(self.args.output_dir)):  # pyright: ignore[reportArgumentType]
            super()._save_checkpoint(model, trial)


@contextmanager
def _first_signal_waits(watch: _Watch) -> Iterator[None]:
    """Inside, the first SIGINT or SIGTERM lets the step end; a second one raises KeyboardInterrupt at once.

    In a distributed run processes would stop at different steps, so there every one raises. Outside of the main thread,
    which alone gets signals, there is nothing to wait for. A signal that the process ignores, as one that a script
    starts in the background ignores SIGINT, stays ignored.
    """

    def at_once(signum, frame) -> None:
        raise KeyboardInterrupt

    def remember(signum, frame) -> None:
        watch.stop = True
        for signum in former:
            signal.signal(signum, at_once)

    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not alone or threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.getsignal(signum) for signum in STOPPING}
    former = {signum: handler for signum, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for signum in former:
            signal.signal(signum, remember)
        yield
    finally:
        for signum, handler in former.items():
            signal.signal(signum, handler)


def _check_finite(loss: float, config: LabConfig, seed: int, step: int) -> None:
    if not math.isfinite(loss):
        raise ValueError(
            f"{config.encoding}, seed {seed}: got a loss of {loss} at step {step}; expected a finite one; the run has "
            "diverged: compare with a lower learning rate"
        )


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`, or None. The state file is written last: without it one is a torso."""
    whole = []
    for candidate in folder.glob("checkpoint-*"):
        try:
            state = json.loads((candidate / CHECKPOINT_STATE).read_text())
            whole.append((int(state["global_step"]), candidate))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return max(whole)[1] if whole else None


def train(
    config: LabConfig,
    plan: TrainingPlan,
    seed: int,
    material: Material,
    folder: Path,
    progress: Callable[[int, str], None],
) -> Trained:
    """Train a fresh model, or go on from the newest whole checkpoint in `folder`; returns what came of it.

    The seed fixes weights, windows and dropout, so equal calls give equal models, interrupted or not. Checkpoints lie
    in `folder`, the last one that of the finished model. `progress(step, note)` is called after each step.

    Raises KeyboardInterrupt: after SIGINT or SIGTERM, once the step is done and a checkpoint written; ValueError: at
    the first step with a loss that is not finite, and with several GPUs in one process; OSError: when a checkpoint
    cannot be written.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    set_seed(seed)
    model = LabModel(config)
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=plan.steps,
        per_device_train_batch_size=plan.batch // devices,
        learning_rate=plan.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, round(plan.warmup * plan.steps)),
        weight_decay=plan.weight_decay,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=plan.max_grad_norm,
        logging_strategy="no",
        save_steps=plan.save_every,
        save_total_limit=1,
        seed=seed,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["shift_labels"],
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    if arguments.n_gpu > 1:  # the Trainer would give each of them a whole batch
        raise ValueError(
            f"devices: got {arguments.n_gpu} GPUs in one process; expected one to each; start by `accelerate launch` "
            "or let CUDA_VISIBLE_DEVICES name one"
        )
    windows = material.corpus.training_windows(config.length, plan.steps * plan.batch, seed)
    watch = _Watch(material.validation, plan.steps, progress)
    with _first_signal_waits(watch):
        trainer = _SeededOrderTrainer(
            watch,
            model=model,
            args=arguments,
            train_dataset=windows,
            data_collator=_collate,
        )
        trainer.remove_callback(PrinterCallback)
        checkpoint = last_checkpoint(folder)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if watch.stop:
            raise KeyboardInterrupt
    history = trainer.state.log_history
    training, validation = (
        [(entry["step"], entry[curve]) for entry in history if curve in entry] for curve in (TRAINING, VALIDATION)
    )
    return Trained(model, training, validation, watch.seconds_per_step())


def _collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    # the windows' labels are shifted already
    names = {"input_ids": "input_ids", "labels": "shift_labels"}
    return {new: torch.stack([torch.as_tensor(example[old]) for example in examples]) for old, new in names.items()}

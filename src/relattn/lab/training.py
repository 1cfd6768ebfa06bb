"""One training run: the Hugging Face Trainer over seeded windows, with curves, checkpoints and a clean way to stop."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging

from relattn.lab.config import LabConfig
from relattn.lab.evaluate import evaluate
from relattn.lab.material import Material
from relattn.lab.model import LabModel
from relattn.lab.windows import Windows

BETAS = (0.9, 0.98)
LOGS = 60
"""Entries of the training curve."""
VALIDATIONS = 12
"""Entries of the validation curve."""
CHECKPOINT_STATE = "trainer_state.json"


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


class _Watch(TrainerCallback):
    """Progress, the held-out curve, and the stop that SIGINT asks for, at the end of a step."""

    def __init__(
        self, validation: Windows, every: int, progress: Callable[[int, str], None], interrupted: Callable[[], bool]
    ):
        self.validation, self.every, self.progress, self.interrupted = validation, every, progress, interrupted
        self.note = ""
        self.steps, self.started, self.last = 0, 0.0, 0.0

    def seconds_per_step(self) -> float | None:
        """Measured over the steps of this process."""
        return (self.last - self.started) / self.steps if self.steps else None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            loss = evaluate(kwargs["model"], self.validation).mean
            _check_finite(loss, kwargs["model"].config, args.seed, state.global_step)
            # in the trainer's own history, so that checkpoints carry it
            state.log_history.append({"step": state.global_step, "validation_loss": loss})
            self.note = f"{loss:.3f} nats"
        self.progress(state.global_step, self.note)
        self.steps, self.last = self.steps + 1, time.perf_counter()
        if self.interrupted():
            control.should_save = True
            control.should_training_stop = True


class _SeededOrderTrainer(Trainer):
    """The Trainer over windows in their order: each is a random draw already, a function of the seed and its index.

    It ends at the first loss that is not finite, which the Trainer itself would leave out of its history and go on.
    """

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        _check_finite(loss.item(), self.model.config, self.args.seed, self.state.global_step + 1)  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
        return loss

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)  # pyright: ignore[reportArgumentType]


@contextmanager
def _first_interrupt_waits() -> Iterator[Callable[[], bool]]:
    """Inside, the first SIGINT is only remembered (the yielded function tells); a second one raises KeyboardInterrupt.

    In a distributed run processes would stop at different steps, so there every SIGINT raises.
    """
    seen = False

    def remember(signum, frame) -> None:
        nonlocal seen
        seen = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    graceful = int(os.environ.get("WORLD_SIZE", "1")) == 1
    former = signal.signal(signal.SIGINT, remember) if graceful else None
    try:
        yield lambda: seen
    finally:
        if graceful:
            signal.signal(signal.SIGINT, former)


def _check_finite(loss: float, config: LabConfig, seed: int, step: int) -> None:
    if not math.isfinite(loss):
        raise ValueError(
            f"{config.encoding}, seed {seed}: the loss is {loss} at step {step}, so the run has diverged; "
            "compare with a lower learning rate"
        )


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`, or None. The state file is written last: without it one is a torso."""
    whole = []
    for candidate in folder.glob("checkpoint-*"):
        try:
            state = json.loads((candidate / CHECKPOINT_STATE).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            continue
        whole.append((state["global_step"], candidate))
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

    Raises:
        KeyboardInterrupt: after SIGINT, once the step is done and a checkpoint written.
        ValueError: at the first step with a loss that is not finite; with several GPUs in one process.
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
        logging_steps=max(1, plan.steps // LOGS),
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
            f"devices: got {arguments.n_gpu} GPUs in one process, expected one to each; start by `accelerate launch` "
            "or let CUDA_VISIBLE_DEVICES name one"
        )
    windows = material.corpus.training_windows(config.length, plan.steps * plan.batch, seed)
    with _first_interrupt_waits() as interrupted:
        watch = _Watch(material.validation, max(1, plan.steps // VALIDATIONS), progress, interrupted)
        trainer = _SeededOrderTrainer(
            model=model,
            args=arguments,
            train_dataset=windows,  # pyright: ignore[reportArgumentType]
            data_collator=_collate,
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        checkpoint = last_checkpoint(folder)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if interrupted():
            raise KeyboardInterrupt
    history = trainer.state.log_history
    return Trained(
        model,
        [(entry["step"], entry["loss"]) for entry in history if "loss" in entry],
        [(entry["step"], entry["validation_loss"]) for entry in history if "validation_loss" in entry],
        watch.seconds_per_step(),
    )


def _collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    # the windows' labels are shifted already
    names = {"input_ids": "input_ids", "labels": "shift_labels"}
    return {new: torch.stack([torch.as_tensor(example[old]) for example in examples]) for old, new in names.items()}

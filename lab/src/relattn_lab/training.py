"""One training run: the Hugging Face Trainer over seeded windows, with curves, checkpoints and a clean way to stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import TrainingArguments, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging

from relattn.cli.stopped import stop
from relattn_lab.config import LabConfig
from relattn_lab.data_parallel import ONE_PROCESS, DataParallel
from relattn_lab.dataset import Dataset
from relattn_lab.model import LabModel
from relattn_lab.processes import Processes
from relattn_lab.stopping import first_signal_waits
from relattn_lab.trainer import TRAINING, VALIDATION, ParallelTrainer, Watch

CHECKPOINT_STATE = "trainer_state.json"


@dataclass(frozen=True)
class TrainingPlan:
    """How every model of a comparison is trained: Muon and AdamW, warm-up then a cosine to zero, clipped gradients.

    `batch` is in windows over all processes; `warmup` a share of the steps; a checkpoint is written every `save_every`
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


def kept_steps(folder: Path) -> int:
    """How many steps of a run its newest whole checkpoint in `folder` holds; 0 where there is none."""
    checkpoint = last_checkpoint(folder)
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("checkpoint-"))


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`, or None.

    The state file is written last: a checkpoint without it is not complete.
    """
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
    dataset: Dataset,
    folder: Path,
    progress: Callable[[int, str], None],
    parallel: DataParallel = ONE_PROCESS,
    report_to: tuple[str, ...] = (),
) -> Trained:
    """Train a fresh model, or go on from the newest whole checkpoint in `folder`; returns what came of it.

    The seed fixes weights, windows and dropout, so equal calls give equal models, interrupted or not. Checkpoints lie
    in `folder`, the last one that of the finished model. `progress(step, note)` is called after each step.

    parallel: how processes share the work; all make the same call. Without dropout the model is that
    of one process up to rounding. With dropout every process draws its own weights. All processes of a split window use
    one draw, that of the first among them.

    report_to: where the Trainer reports both curves while it trains, by its own names; TensorBoard's files lie beside
    `folder`.

    Raises KeyboardInterrupt: after SIGINT or SIGTERM, once the step is done and a checkpoint written; with several
    processes, immediately; DivergedError: at the first step with a loss that is not finite; ValueError: with several
    GPUs in one process; OSError: when a checkpoint cannot be written.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    set_seed(seed)
    model = LabModel(config)
    parallel.lay(model)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=plan.steps,
        per_device_train_batch_size=plan.batch // parallel.groups,
        use_cpu=parallel.processes > 1 and not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        learning_rate=plan.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, round(plan.warmup * plan.steps)),
        weight_decay=plan.weight_decay,
        max_grad_norm=plan.max_grad_norm,
        logging_strategy="no",
        save_steps=plan.save_every,
        save_total_limit=1,
        seed=seed,
        report_to=list(report_to) or "none",
        run_name=f"{config.encoding}-seed{seed}",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["shift_labels"],
        use_cache=True,  # goes into the model's configuration: whoever generates with it later has the cache
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    if arguments.n_gpu > 1:  # the Trainer would give each of them a whole batch
        raise ValueError(
            f"devices: got {arguments.n_gpu} GPUs in one process; expected one to each; start by `accelerate launch` "
            "or let CUDA_VISIBLE_DEVICES name one"
        )
    windows = dataset.corpus.training_windows(config.length, plan.steps * plan.batch, seed)
    watch = Watch(dataset.validation, parallel, plan.steps, progress)
    # several processes would stop at different steps: there every one raises at once
    with first_signal_waits(watch.asked) if parallel.processes == 1 else nullcontext():
        steps = [parallel.rows(step, plan.batch) for step in range(plan.steps)]
        trainer = ParallelTrainer(watch, steps, model=model, args=arguments, train_dataset=windows)
        trainer.remove_callback(PrinterCallback)
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback):
                callback.logging_dir = str(folder.parent / "tensorboard")
        processes = Processes()
        if not processes.is_main:  # the first draws on as one process does
            torch.manual_seed(seed + processes.index)
        checkpoint = processes.on_main(lambda: last_checkpoint(folder))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if watch.asked.signum is not None:
            stop(watch.asked.signum)
    history = trainer.state.log_history
    training, validation = (
        [(entry["step"], entry[curve]) for entry in history if curve in entry] for curve in (TRAINING, VALIDATION)
    )
    return Trained(model, training, validation, watch.seconds_per_step())

"""Processes: those that a launcher has started to work on one comparison together."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, str_to_bool

T = TypeVar("T")

COUNTED = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where launchers write how many processes they have started."""


REPORTED = timedelta(seconds=20)
"""In which the main process has reported an error."""


class ElsewhereError(Exception):
    """The main process has failed. It reports the error; this process does not."""


class Processes:
    """All processes that work together; one alone where no launcher has started more.

    count: how many they are. index: which of them this is. device: where each has its tensors.

    Raises ValueError: under `accelerate launch --cpu` for several processes, which starts one of them alone.
    """

    def __init__(self) -> None:
        _check_launch()
        state = PartialState(cpu=not torch.cuda.is_available())  # else accelerate takes no notice of torchrun on a CPU
        self.count, self.index = state.num_processes, state.process_index
        self.device: torch.device = state.device  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and reports."""
        return self.index == 0

    def leave(self, code: int) -> None:
        """End this process with the exit code `code`, where it is one of several; alone it goes on.

        0: all end well, and each waits for the others first, for one may still need what another sent. What was
        registered for the exit is run. Then the process ends at once, with its process group and gloo's threads still
        there. Python's own exit frees tensors beside these threads, and now and then one of them aborts the process. To
        destroy the group first does not help: the garbage collection after that was seen to wait without end.
        """
        if self.count > 1:
            try:
                if code == 0:
                    dist.barrier()
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                traceback.print_exc()
                code = code or 1
            finally:
                os._exit(code)

    def leave_after_main(self, code: int) -> None:
        """`leave` after an error, once the main process has ended, or after a while: a launcher kills all as soon as
        one fails, and the main one has yet to report.
        """
        with suppress(RuntimeError):  # the connection closes
            work = dist.barrier(async_op=True)  # which the main process does not reach
            if work is not None:
                work.wait(REPORTED)
        self.leave(code)

    def on_main(self, action: Callable[[], T]) -> T:
        """Run `action` in the main process alone, and return its result in every process. The result must be picklable.

        Raises ElsewhereError: in the others, where `action` raises in the main process.
        """
        if self.count == 1:
            return action()
        found, error = None, None
        if self.is_main:
            try:
                found = action()
            except Exception as raised:  # the waiting processes must be told
                error = raised
        found, failed = broadcast_object_list([found, error is not None])
        if error is not None:
            raise error
        if failed:
            raise ElsewhereError
        return found


def _check_launch() -> None:
    launched = any(name in os.environ for name in COUNTED)
    on_cpu = str_to_bool(os.environ.get("ACCELERATE_USE_CPU", "false")) == 1
    if on_cpu and "MASTER_ADDR" in os.environ and not launched:
        raise ValueError(
            "processes: got one process of the several that `accelerate launch --cpu` was asked for; expected all of "
            "them, but on CPUs it starts more than one by mpirun alone (--mpirun_hostfile); start them by `torchrun "
            "--nproc-per-node N -m relattn_lab compare ...`"
        )

"""Processes that live through the tests: each runs the same function, as a rank of one gloo group."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

START = 60.0
"""Seconds that a process may take to import torch and to find the others."""


class Ranks:
    """`world` processes of one thread each, which form one group; started when they are first asked.

    patience: seconds, the group's timeout. last: what each answered last, and whether it did.
    """

    def __init__(self, world: int, patience: float = 120.0) -> None:
        self.world, self.patience = world, patience
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.pipes: list[Connection] = []
        self.last: list[tuple[bool, Any]] = []

    def __call__(self, function: Any, *arguments: Any, timeout: float = 120.0) -> list[Any]:
        """function(rank, *arguments) of every rank; function is found by the name of its module and its own.

        Raises AssertionError: with the tracebacks of the ranks that raised, or where some do not answer in time. The
        processes are then started anew for the next call.
        """
        if not self.processes:
            self._start()
        for pipe in self.pipes:
            pipe.send((function.__module__, function.__name__, arguments))
        try:
            answers = self._answers(timeout)
        except BaseException:
            self.stop()
            raise
        self.last = answers
        failed = [(rank, text) for rank, (fine, text) in enumerate(answers) if not fine]
        if failed:
            self.stop()
            raise AssertionError("\n".join(f"rank {rank} of {self.world}: {text}" for rank, text in failed))
        return [answer for _, answer in answers]

    def stop(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.join()
        self.processes, self.pipes = [], []

    def _start(self) -> None:
        store = Path(tempfile.mkdtemp()) / "store"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "pytest", "relattn.distributed"])  # imported once, not by every rank
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self.world, self.patience, str(store), theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self._answers(START)

    def _answers(self, timeout: float) -> list[tuple[bool, Any]]:
        """(whether it went well, what came) of every rank; of a rank that has ended, that it did."""
        answers: dict[int, tuple[bool, Any]] = {}
        end = time.monotonic() + timeout
        while len(answers) < self.world:
            missing = [pipe for rank, pipe in enumerate(self.pipes) if rank not in answers]
            ready = wait(missing, timeout=max(end - time.monotonic(), 0.0))
            if not ready:
                silent = [rank for rank in range(self.world) if rank not in answers]
                raise AssertionError(f"ranks {silent} of {self.world} gave no answer in {timeout} s; {answers}")
            for pipe in ready:
                rank = self.pipes.index(pipe)  # pyright: ignore[reportArgumentType]
                try:
                    answers[rank] = self.pipes[rank].recv()
                except EOFError:
                    answers[rank] = False, "the process has ended"
        return [answers[rank] for rank in range(self.world)]


def _serve(rank: int, world: int, patience: float, store: str, pipe: Connection) -> None:
    """Answer what comes through the pipe, until it is closed."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=patience)
    )
    pipe.send((True, None))
    while True:
        try:
            module, name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))

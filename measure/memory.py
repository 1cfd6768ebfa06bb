"""The peak memory of one step, measured in a separate process.

Linux: the high-water mark of resident memory, reset before the step. Other systems: ru_maxrss. It cannot be reset, so a
peak below the process's earlier peak is not seen. CUDA: the allocator's peak.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from measure.candidates import CANDIDATES
from relattn.cli.bench.case import step
from relattn.cli.bench.workload import Workload

MIB, GIB = 2**20, 2**30
WARM_LENGTH = 64
PREPARATION_SECONDS = 180.0
"""Time for starting, warming up and compiling, on top of the patience for the step itself."""
ENDING_SECONDS = 5.0
"""Time for a process to end by itself once its work is done, before it is killed."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one step.

    held: query, key, value, the gradient by the output, and the parameters. peak: the most that the step adds to them,
        output and gradients included. returned: the output and the gradients. seconds: the time of this step.
    """

    held: int
    peak: int
    returned: int
    seconds: float

    @property
    def beyond(self) -> int:
        """Memory beyond inputs, outputs and gradients: the peak minus the returned tensors; 0 if rounding to pages
        makes it negative.
        """
        return max(0, self.peak - self.returned)

    @property
    def total(self) -> int:
        """Everything the step needs."""
        return self.held + self.peak


class TooMuchError(RuntimeError):
    """A step that did not end within its limit; the message names the limit."""


class OverMemoryError(TooMuchError):
    """It needs more memory than allowed."""


class OverTimeError(TooMuchError):
    """It takes longer than allowed."""


def measure(candidate: str, workload: Workload, limit: int, patience: float) -> Memory:
    """One step of a candidate in a separate process.

    limit: the bytes that it may add. It holds on a CPU under Linux; elsewhere the device's memory is the limit.
    patience: seconds for the step.

    Raises OverMemoryError, OverTimeError: when a limit is not enough (a process that the system kills counts as over
    memory); RuntimeError: for any other failure.
    """
    arguments = candidate, workload, torch.get_num_threads()
    return in_own_process(_measure_candidate, arguments, limit if workload.device == "cpu" else None, patience)


def in_own_process(
    work: Callable[..., Memory], arguments: tuple[object, ...], limit: int | None, patience: float
) -> Memory:
    """work(began, *arguments) in a new process; `work` calls `began` when the patience starts to count."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, work.__module__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, work, arguments, limit))
    process.start()
    sender.close()
    try:
        kind, result = _next(receiver, PREPARATION_SECONDS)
        if kind == "began":
            kind, result = _next(receiver, patience)
        process.join(ENDING_SECONDS)
    except EOFError:
        process.join()
        ended = f"its process ended with code {process.exitcode}"
        if process.exitcode == -signal.SIGKILL:
            raise OverMemoryError(f"{ended}, killed by the system") from None
        raise RuntimeError(ended) from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if kind == "memory":
        raise OverMemoryError(
            "needs more memory than there is" if limit is None else f"needs {limit / GIB:.1f} GiB or more"
        )
    if kind == "error":
        raise RuntimeError(result)
    assert isinstance(result, Memory)
    return result


def available(device: str) -> int:
    """Bytes of memory that the device can give now (a CPU without swapping; all where the system does not say)."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    if sys.platform == "linux":
        return _kilobytes("/proc/meminfo", "MemAvailable")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _next(receiver: Connection, seconds: float) -> tuple[str, object]:
    if not receiver.poll(seconds):
        raise OverTimeError(f"one step takes longer than {seconds:g} s")
    return receiver.recv()


def _child(sender: Connection, work: Callable[..., Memory], arguments: tuple[object, ...], limit: int | None) -> None:
    """Run the work and send ("done", Memory), ("memory", text) or ("error", text), after ("began", None)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C, by ending this process
    multiprocessing.set_start_method("fork", force=True)  # so no lock (tqdm has one) outlives a killed process
    try:
        if limit is not None and sys.platform == "linux":  # refused before the machine starts to swap
            resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + limit, resource.RLIM_INFINITY))
        sender.send(("done", work(lambda: sender.send(("began", None)), *arguments)))
    except (MemoryError, torch.OutOfMemoryError) as error:
        sender.send(("memory", str(error)))
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        refused = "not enough memory" in text or "allocate memory" in text
        sender.send(("memory" if refused else "error", f"{type(error).__name__}: {text}"))


def _measure_candidate(began: Callable[[], None], name: str, workload: Workload, threads: int) -> Memory:
    torch.set_num_threads(threads)
    candidate = CANDIDATES[name]
    compiles = candidate.compiles or workload.device == "cuda"  # where kernels are tuned for a length, and loaded
    if not compiles:  # loads the libraries' pages and starts the threads, which do not belong to the step
        warm = candidate.case(workload.at(min(workload.length, WARM_LENGTH)))
        step(warm, candidate.prepare(warm))
    case = candidate.case(workload)
    held = sum(tensor.nbytes for tensor in (*case.leaves.values(), case.upstream))
    if compiles:
        call = candidate.prepare(case)
        step(case, call)
        before = current(workload.device)
    else:
        before = current(workload.device)
        call = candidate.prepare(case)
    began()
    reset_peak(workload.device)
    start = time.perf_counter()
    returned = step(case, call)
    if workload.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return Memory(held, peak(workload.device) - before, sum(t.nbytes for t in returned.values()), seconds)


def current(device: str) -> int:
    """Bytes in use now, after everything free has been given back."""
    gc.collect()
    if device == "cuda":
        return torch.cuda.memory_allocated()
    if sys.platform != "linux":
        return _highest_ever()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # memory that the C library keeps would be reused without being counted
        libc.malloc_trim(0)
    return _status("VmRSS")


def reset_peak(device: str) -> None:
    """Reset the peak, where the system can."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif sys.platform == "linux":
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")


def peak(device: str) -> int:
    """The most bytes in use since `reset_peak`."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return _status("VmHWM") if sys.platform == "linux" else _highest_ever()


def _status(field: str) -> int:
    return _kilobytes("/proc/self/status", field)


def _kilobytes(path: str, field: str) -> int:
    """A field that a file of /proc gives in kB, in bytes."""
    with open(path, encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _highest_ever() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

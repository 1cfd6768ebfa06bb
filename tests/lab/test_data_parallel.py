"""Who works on which windows, and on which part of them: the arithmetic of one process, without any other."""

import pytest
import torch

from relattn_lab.data_parallel import ONE_PROCESS, DataParallel
from relattn_lab.processes import ElsewhereError, Processes


def processes(count, index=0):
    """As a launcher would have started them; nothing is sent."""
    made = Processes()
    made.count, made.index = count, index
    made.on_main = lambda action: action()
    return made


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_the_windows_of_a_step_are_dealt_once(groups):
    for step in (0, 1, 5):
        dealt = [row for group in range(groups) for row in DataParallel(groups, group).rows(step, 6)]
        assert dealt == list(range(6 * step, 6 * step + 6))


def test_one_process_holds_all_of_it():
    windows = {"input_ids": torch.arange(6).reshape(2, 3).numpy(), "labels": torch.arange(6, 12).reshape(2, 3).numpy()}
    part = ONE_PROCESS.part(windows)
    assert part.input_ids.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert part.labels.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert part.positions.tolist() == [0, 1, 2]
    assert ONE_PROCESS.processes == ONE_PROCESS.context == 1


def test_without_context_every_process_is_a_group():
    parallel = DataParallel.of(processes(4, index=3), batch=8, context=1)
    assert (parallel.groups, parallel.group, parallel.processes) == (4, 3, 4)


@pytest.mark.parametrize(
    ("count", "batch", "context", "said"),
    [
        (
            3, 4, 2,
            "context_parallel: got 2 for 3 processes; expected a number that divides the processes; start 2, or a "
            "multiple, by `torchrun --nproc-per-node 2 -m relattn_lab compare ...`",
        ),
        (
            1, 4, 2,
            "context_parallel: got 2 for 1 process; expected a number that divides the processes; start 2, or a "
            "multiple, by `torchrun --nproc-per-node 2 -m relattn_lab compare ...`",
        ),
        (
            6, 4, 2,
            "batch: got 4 windows for 6 processes, which divide them by 3; expected a number that divides the batch; "
            "start another number of processes",
        ),
    ],
)  # fmt: skip
def test_batches_that_cannot_be_shared(count, batch, context, said):
    with pytest.raises(ValueError) as caught:
        DataParallel.of(processes(count), batch, context)
    assert str(caught.value) == said


UNDER_ACCELERATE = {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""What `accelerate launch --cpu --num_processes 2` tells the one process that it starts."""


def test_one_process_of_several_is_refused(monkeypatch):
    for name, value in UNDER_ACCELERATE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as caught:
        Processes()
    assert str(caught.value) == (
        "processes: got one process of the several that `accelerate launch --cpu` was asked for; expected all of them, "
        "but on CPUs it starts more than one by mpirun alone (--mpirun_hostfile); start them by `torchrun "
        "--nproc-per-node N -m relattn_lab compare ...`"
    )


@pytest.mark.parametrize("absent", ["ACCELERATE_USE_CPU", "MASTER_ADDR"])
def test_one_process_that_is_alone_is_not(monkeypatch, absent):
    for name, value in UNDER_ACCELERATE.items():
        if name != absent:
            monkeypatch.setenv(name, value)
    assert (Processes().count, Processes().is_main) == (1, True)


def test_what_the_main_process_does_is_known_to_all(monkeypatch):
    """Two processes in turn: what the main one sends, the other gets."""
    sent = []

    def broadcast(given):
        if not sent:
            sent.append(given)
        return sent[0]

    monkeypatch.setattr("relattn_lab.processes.broadcast_object_list", broadcast)
    main, other = Processes(), Processes()
    main.count = other.count = 2
    main.index, other.index = 0, 1
    assert main.on_main(lambda: 7) == other.on_main(lambda: pytest.fail("the main process alone does it")) == 7
    sent.clear()
    with pytest.raises(OSError, match="no room"):
        main.on_main(lambda: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(ElsewhereError):
        other.on_main(lambda: 7)

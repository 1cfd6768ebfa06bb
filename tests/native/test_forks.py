"""Fork: with one thread, and after several ones have run, the parent and its child both go on."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_parent_and_child_go_on_and_find_the_same_bits(threads: int) -> None:
    """The child of os.fork, and a worker of torch.utils.data; with several threads the child is told to use one."""
    command = [sys.executable, "-m", "tests.native.forks", str(threads)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)

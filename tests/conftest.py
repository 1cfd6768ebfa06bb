"""What every test shares: threads that fit the machine, and hypothesis's settings."""

import os

from hypothesis import settings

# Workers of pytest-xdist share the cores; with more threads than cores small tensors run several times slower.
# The variable is read when torch and numpy are first imported, and by the processes that a test starts.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))

# Fresh examples on every run, on CI too (hypothesis would fix them there); a failure prints the line that repeats it.
# No deadline: the first call of an operator compiles or loads things, and a busy machine is no bug.
settings.register_profile(
    "relattn", parent=settings.get_profile("default"), derandomize=False, deadline=None, print_blob=True
)
settings.load_profile("relattn")

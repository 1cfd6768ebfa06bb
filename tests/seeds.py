"""Where every random number of the tests comes from: the base seed RELATTN_SEED, and the name of what draws.

Without the variable the base is 0, and every run draws the same. `make search` sets others.
"""

import hashlib
import os
import random

import numpy as np
import torch
from hypothesis import HealthCheck, core, settings
from hypothesis.internal.conjecture import providers

# No deadline and no check of speed: the first call of an operator compiles or loads things, and a busy machine is no
# bug. No database: an example that failed once would change what later runs draw.
PROFILE = settings(
    settings.get_profile("default"),
    derandomize=False,  # start_all fixes what is drawn
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("relattn", PROFILE)

BASE = os.environ.get("RELATTN_SEED", "0")

# Hypothesis mixes numbers that it finds in the modules loaded so far into what it draws: a test would draw
# otherwise alone than among others. There is no setting for it.
providers._get_local_constants = lambda: providers._local_constants


def seed(*names: object) -> int:
    """32 bits that the base and the names fix, the same in every process and on every machine."""
    text = repr((BASE, *map(str, names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


def generator(*names: object) -> np.random.Generator:
    """A generator of NumPy's that starts from seed(*names)."""
    return np.random.default_rng(seed(*names))


def torch_generator(*names: object) -> torch.Generator:
    """A generator of torch's that starts from seed(*names)."""
    return torch.Generator().manual_seed(seed(*names))


def start_torch(*names: object) -> None:
    """torch's shared generators start from seed(*names), as by torch.manual_seed.

    That also keeps a stack trace of every call for each kind of device that is not in use, which takes longer than
    many a test.
    """
    number = seed(*names)
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(number)


def start_all(*names: object) -> None:
    """Every generator that is shared by all starts from seed(*names): Python's, NumPy's, torch's, hypothesis's."""
    number = seed(*names)
    random.seed(number)
    np.random.seed(number)
    start_torch(*names)
    settings.load_profile("relattn")  # PyTorch's own tests, where one imports them, load one that fixes other numbers
    core.global_force_seed = number  # what the option --hypothesis-seed sets; it holds for @given inside of a test too


def states() -> tuple:
    """What `restore` takes to go on as if nothing had been drawn since."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), core.global_force_seed


def restore(kept: tuple) -> None:
    """Every shared generator as it was when `states` gave `kept`."""
    python, legacy, pytorch, core.global_force_seed = kept
    random.setstate(python)
    np.random.set_state(legacy)
    torch.set_rng_state(pytorch)

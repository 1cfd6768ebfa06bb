"""A digest of everything that each test draws, written down where RELATTN_DIGEST names a file.

A line of JSON for each test, shared fixture and module that draws, {"name", "draws", "digest"}: how often it drew, and
a hash of every tensor, array and number that it got, in order. RELATTN_SHUFFLE=N runs the tests in another order.
`tests.repeats` compares such files.
"""

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests import seeds


class Drawn:
    """What one test, fixture or module drew so far."""

    def __init__(self) -> None:
        self.draws, self.hash, self.started = 0, hashlib.sha256(), False

    def add(self, kind: str, *values: Any) -> None:
        self.draws += 1
        self.hash.update(kind.encode())
        for value in values:
            array = np.asarray(value)
            self.hash.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())

    def add_states(self, before: bytes) -> None:
        """How the generators stand that cannot be listened to, where they were started or moved since `before`.

        Of a test that is skipped they stand where the test before left them.
        """
        after = _states()
        if self.started or after != before:
            self.hash.update(after)


def _states() -> bytes:
    """How the generators stand whose own functions cannot be listened to."""
    _, key, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return key.tobytes() + repr((position, has_gauss, gauss, random.getstate())).encode()


current = Drawn()


class TorchDraws(TorchDispatchMode):
    """Every operation of torch that draws: from a generator that it is given, or moving the one that all share.

    Attention with dropout of 0 is among those that might, and does neither.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # torch.compile would not compile in a mode

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in getattr(function, "tags", ()):
            return function(*args, **kwargs)
        before = torch.get_rng_state()
        result = function(*args, **kwargs)
        given = any(isinstance(one, torch.Generator) for one in (*args, *kwargs.values()))
        if given or not torch.equal(before, torch.get_rng_state()):
            outputs = result if isinstance(result, tuple | list) else [result]
            tensors = [one for one in outputs if isinstance(one, torch.Tensor) and _has_numbers(one)]
            current.add(str(function), *map(_bytes, tensors))
        return result


def nobody_listens() -> AbstractContextManager[object]:
    """For tests of what is done where no mode looks on: `TorchDraws` hears nothing inside, so draw before."""
    return _disable_current_modes()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Of any dtype, also of one that NumPy lacks."""
    return tensor.detach().cpu().flatten().clone().view(torch.uint8)


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Not what a compiler traces with."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta"


class NumpyDraws(np.random.Generator):
    """A generator that tells what is drawn from it."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        def draw(*args: Any, **keywords: Any) -> Any:
            result = found(*args, **keywords)
            if name != "spawn":
                current.add(name, args[0] if result is None else result)  # shuffle writes into what it gets
            return result

        return draw


def _is_foreign(seed: Any, frame: FrameType) -> bool:
    """Whether a library seeds by the system, as for the names of temporary files: no test asks for what it draws."""
    if seed is not None:
        return False
    package = frame.f_globals["__name__"].partition(".")[0]
    return package not in ("tests", "relattn") and not package.startswith("test_")


def _numpy_generator(seed: Any = None) -> np.random.Generator:
    """np.random.default_rng, of generators that tell."""
    if isinstance(seed, np.random.Generator):
        return seed
    kind = np.random.Generator if _is_foreign(seed, sys._getframe(1)) else NumpyDraws
    return kind(np.random.PCG64(seed))


def _tell_of_starts() -> None:
    """seeds.start_all tells that it was called."""
    start = seeds.start_all

    def telling(*names: object) -> None:
        current.started = True
        start(*names)

    seeds.start_all = telling


def _tell_of_python() -> None:
    """Python's generators, those inside of hypothesis among them, tell what is drawn from them."""
    start = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        start(self, a, version)
        self.foreign = _is_foreign(a, sys._getframe(2))

    def telling(method: str) -> Callable[..., Any]:
        original = getattr(random.Random, method)

        def draw(self: random.Random, *arguments: Any) -> Any:
            result = original(self, *arguments)
            if type(self) is random.Random and not getattr(self, "foreign", False):
                current.add(method, str(result))
            return result

        return draw

    random.Random.seed = seed
    random.Random.random, random.Random.getrandbits = telling("random"), telling("getrandbits")


class Digests:
    """The plugin: a digest for each test, for each fixture that several tests share, and for each module."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        backend = os.environ.get("KERAS_BACKEND")
        self.prefix = f"{backend}: " if backend else ""
        np.random.default_rng = _numpy_generator
        _tell_of_starts()
        _tell_of_python()

    @contextmanager
    def digest(self, name: str) -> Iterator[None]:
        """Write down what is drawn inside, under the name, and nothing of it for what goes on outside."""
        global current
        outer, current = current, Drawn()
        before = _states()
        try:
            with TorchDraws():
                yield
            current.add_states(before)
            line = {"name": self.prefix + name, "draws": current.draws, "digest": current.hash.hexdigest()}
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        finally:
            current = outer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        with self.digest(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
        if fixturedef.scope == "function":
            return (yield)
        with self.digest(f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}]"):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_make_collect_report(self, collector: pytest.Collector):
        if not isinstance(collector, pytest.Module):
            return (yield)
        with self.digest(f"import of {collector.nodeid}"):
            return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if order := os.environ.get("RELATTN_SHUFFLE"):
            random.Random(order).shuffle(items)

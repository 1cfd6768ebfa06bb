"""What every test shares: threads that fit the machine, and fixed random numbers."""

import gc
import os
import signal
import zlib
from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import combinations, islice

import numpy as np
import pytest

from relattn import plan
from relattn.backends import problem_operator
from tests import reach, seeds


def pytest_report_header() -> str:
    return f"random numbers: RELATTN_SEED={seeds.BASE}"


def pytest_configure(config: pytest.Config) -> None:
    """Workers of pytest-xdist share the cores; with more threads than cores small tensors run several times slower.

    The process that starts them sets the variable: NumPy and torch read it when they are first imported, and NumPy is
    by a plugin, before any conftest.py.
    """
    if workers := len(config.getoption("tx", None) or ()):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: garbage collections need not walk over it again.

    The trainer collects at the end of every run, the compiler at every reset, each time over a million objects.
    """
    gc.freeze()


def met(item: pytest.Item) -> set:
    """The values of a case's parameters, its function's among them, and the pairs of them."""
    values = [("function", item.nodeid.partition("[")[0])]
    if hasattr(item, "callspec"):
        values += [(name, id(value)) for name, value in item.callspec.params.items()]
    return {*values, *combinations(values, 2)}


def spread(cases: list[pytest.Item]) -> Iterator[tuple[pytest.Item, int]]:
    """The cases, first those that meet the most values and pairs not yet met, each with the number of these.

    Where two meet as many, a fast one comes before a slow one; then their names fix the order.
    """
    seen = set()
    queue = [
        (-len(met(case)), case.get_closest_marker("slow") is not None, zlib.crc32(case.nodeid.encode()), number)
        for number, case in enumerate(cases)
    ]
    heapify(queue)
    while queue:
        promised, *rest, number = heappop(queue)
        new = met(cases[number]) - seen
        if len(new) == -promised:
            seen |= new
            yield cases[number], len(new)
        else:  # others may bring more by now
            heappush(queue, (-len(new), *rest, number))


def share(cases: list[pytest.Item], part: int) -> set[pytest.Item]:
    """One in `part` of the cases, those that meet the most pairs, one at least."""
    return {case for case, _ in islice(spread(cases), max(len(cases) // part, 1))}


def deselect(config: pytest.Config, items: list[pytest.Item], left: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = [item for item in items if item in left]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """Which of the cases of a product run.

    Of a test marked `pairs`, cases stay until every pair of values of two parameters is met. Where a whole file is
    marked, its tests are one product, and the function is a parameter: alone, a test of it has more cases. Of a test
    marked one_in(n), that n-th of its cases stays which meets the most pairs, one case at least; the rest are slow.

    RELATTN_SINCE=commit leaves one in ten of those that what changed since the commit cannot reach. Then -m and -k
    choose. Of what they leave, RELATTN_ONE_IN=8 takes one case in eight of each file, those that meet the most pairs,
    one case at least; the function counts as a parameter.

    Tests with a timeout of their own last longest. They come first: at the end one worker would run them, and the
    others wait. A test that starts tests of its own starts all of them: the variables end here.
    """
    since, one_in = os.environ.pop("RELATTN_SINCE", ""), os.environ.pop("RELATTN_ONE_IN", "")
    products, parts, files = defaultdict(list), defaultdict(list), defaultdict(list)
    for item in items:
        for node, _ in item.iter_markers_with_node("pairs"):
            products[node.nodeid.partition("[")[0]].append(item)
    twins = {case for product in products.values() for case, new in spread(product) if not new}
    deselect(config, items, {*items} - twins)
    if since:
        reached = reach.reaching(reach.changed_since(since))
        items[:] = [item for item in items if item.path in reached or zlib.crc32(item.nodeid.encode()) % 10 == 0]
    for item in items:
        if item.get_closest_marker("one_in") is not None and item.get_closest_marker("slow") is None:
            parts[item.nodeid.partition("[")[0]].append(item)
    for part in parts.values():
        for item in {*part} - share(part, part[0].get_closest_marker("one_in").args[0]):
            item.add_marker(pytest.mark.slow)
    yield
    if one_in:
        for item in items:
            files[item.path].append(item)
        deselect(config, items, set().union(*(share(cases, int(one_in)) for cases in files.values())))
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.fixture(autouse=True)
def _fixed_numbers(request: pytest.FixtureRequest) -> None:
    """A test draws what the base seed and its name fix, and finds no plan, whatever ran before it."""
    seeds.start_all(request.node.nodeid)
    plan.KNOWN.clear()
    problem_operator.PASSES.clear()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of the test's own."""
    return seeds.generator(request.node.nodeid, "rng")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
    """A fixture that several tests share draws what its own name fixes, whichever of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    kept = seeds.states()
    seeds.start_all(fixturedef.baseid, fixturedef.argname, getattr(request, "param_index", 0))
    try:
        return (yield)
    finally:
        seeds.restore(kept)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """What a module draws when it is imported, its own name fixes."""
    seeds.start_all(collector.nodeid)
    return (yield)

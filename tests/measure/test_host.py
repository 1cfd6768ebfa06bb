"""The time of the host, by a clock that the calls themselves move."""

import torch

from measure import host
from relattn.cli.bench.timing import LEAST_PAIRS
from tests.cli.bench.test_timing import Clock, Device


def test_the_host_is_timed_until_a_call_returns(monkeypatch):
    clock, device = Clock(), Device()
    monkeypatch.setattr(host, "time", clock)
    monkeypatch.setattr(torch, "cuda", device)
    assert host.host_seconds(clock.worker("ours", lambda n: 0.5 if n == 3 else 0.125)) == 0.125
    assert device == ["wait", "busy for 10 ms"] * LEAST_PAIRS

"""Mutated requests to a live broker: a short `make fuzz-broker`."""

from __future__ import annotations

import os

import pytest

from bench import fuzz_broker
from headrace.broker import EmbeddedBroker

FRAMES = 20_000
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "17"))


@pytest.mark.timeout(180)
def test_a_broker_survives_malformed_input_and_serves_others() -> None:
    with EmbeddedBroker() as broker:
        report = fuzz_broker.run(broker, FRAMES, SEED)
        assert report.tracebacks == 0, (SEED, broker.log_text)
        assert report.good_records > 0
        assert report.memory_mb_after - report.memory_mb_before < fuzz_broker.MEMORY_GROWTH_MB_MAX, SEED

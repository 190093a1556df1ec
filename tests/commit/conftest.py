"""One broker for all tests of the commit protocol's parts; each test has its own sink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from headrace.broker import EmbeddedBroker
from tests.support.sink_rig import SinkRig

OPTIONS = {
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(OPTIONS) as running:
        yield running


@pytest.fixture
def rig(broker: EmbeddedBroker) -> Iterator[SinkRig]:
    with SinkRig(broker) as made:
        yield made

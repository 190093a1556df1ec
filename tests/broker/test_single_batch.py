"""The short cut for produce requests with one batch: its responses and logs are those of the handler."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from headrace.broker.handlers import single_batch
from headrace.broker.server import dispatch
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer, encode
from tests.support.broker_in_loop import broker_in_loop
from tests.support.peers.connection import Connection

HOUR_MS = 3_600_000
SECONDS_MAX = 20
NOW_MS = int(time.time() * 1000)


def batch(*, key=b"key", time_ms=NOW_MS, producer=None, value=b"value"):
    records = [Record(n, time_ms, key, value, ()) for n in range(3)]
    return bytes(encode(records) if producer is None else encode(records, producer=BatchProducer(*producer)))


IDEMPOTENT = [(7, 0, 0), (7, 0, 0), (7, 0, 3), (7, 0, 9), (7, 1, 0), (7, 0, 6)]
"""In order, repeated, in order, out of order, a newer epoch, a fenced one."""
CASES = {
    "plain": ({}, [batch(), batch()]),
    "idempotent": ({}, [batch(producer=producer) for producer in IDEMPOTENT]),
    "no key": ({}, [batch(key=None)]),
    "no key, compacted": ({"cleanup.policy": "compact"}, [batch(key=None), batch()]),
    "too large": ({"max.message.bytes": "80"}, [batch()]),
    "segment too small": ({"segment.bytes": "1048576"}, [batch(value=bytes(400_000))]),
    "too old": ({"message.timestamp.before.max.ms": str(HOUR_MS)}, [batch(time_ms=NOW_MS - 2 * HOUR_MS), batch()]),
    "too new": ({"message.timestamp.after.max.ms": str(HOUR_MS)}, [batch(time_ms=NOW_MS + 2 * HOUR_MS), batch()]),
    "recompressed": ({"compression.type": "gzip"}, [batch()]),
    "flushed": ({"flush.messages": "1"}, [batch()]),
    "damaged": ({}, [batch()[:-1] + b"\0", batch()]),
    "min.insync.replicas": ({"min.insync.replicas": "2"}, [batch()]),
}


@pytest.fixture
def counted(monkeypatch):
    """Counts the requests of the short cut, which a test can switch off."""

    class Counted:
        taken = 0
        is_on = True

    def call(*arguments):
        response = single_batch.append_single_batch(*arguments) if Counted.is_on else None
        Counted.taken += response is not None
        return response

    monkeypatch.setattr(dispatch, "append_single_batch", call)
    return Counted


async def produced(bootstrap, version, topic, topic_id, batches, acks=-1):
    """The responses to a request for each batch."""

    def exchange():
        responses = []
        with Connection(bootstrap) as connection:
            for records in batches:
                data = [PartitionProduceData(partition_index=0, records=records)]
                row = TopicProduceData(partition_data=data)
                row = row.replace(topic_id=topic_id) if version >= 13 else row.replace(name=topic)
                request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[row])
                responses.append(connection.call(request, version))
        return responses

    return await asyncio.to_thread(exchange)


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("case", CASES)
def test_responses_and_records_are_those_of_the_handler(tmp_path, counted, case, version):
    configs, batches = CASES[case]

    async def run():
        async with broker_in_loop(tmp_path) as broker:
            results = []
            for name, is_on in (("by-short-cut", True), ("by-handler", False)):
                counted.is_on = is_on
                broker.topic_manager.create(name, 1, 1, configs)
                topic = broker.catalog.topics.by_name[name]
                bootstrap = broker.listeners[0].address
                responses = await produced(bootstrap, version, name, topic.id, batches)
                log = broker.replicas.partition(name, 0).log
                stored = bytes(log.read(0, 1 << 20, end_offset=log.end_offset, at_least_one=True).data)
                rows = [response.responses[0].partition_responses[0] for response in responses]
                texts = [re.sub(r"-?\d+ ms", "N ms", row.error_message or "").replace(name, "TOPIC") for row in rows]
                offsets = [(row.base_offset, row.log_append_time_ms, row.log_start_offset) for row in rows]
                codes = [row.error_code for row in rows]
                results.append((codes, offsets, texts, stored, log.high_watermark))
            return results

    by_short_cut, by_handler = asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))
    assert by_short_cut == by_handler
    succeeded = by_short_cut[0].count(0)
    assert counted.taken == (0 if case in ("recompressed", "flushed") else succeeded)


def test_acks_0_authorization_and_internal_topics_are_left_to_the_handler(tmp_path, counted):
    async def run():
        options = {"authorizer.class.name": "acl", "super.users": "User:nobody"}
        async with broker_in_loop(tmp_path, **options) as broker:
            broker.topic_manager.create("denied", 1, 1, {})
            topic = broker.catalog.topics.by_name["denied"]
            (response,) = await produced(broker.listeners[0].address, 9, "denied", topic.id, [batch()])
            assert response.responses[0].partition_responses[0].error_code == 29  # TOPIC_AUTHORIZATION_FAILED
            assert broker.replicas.partition("denied", 0).log.end_offset == 0

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))
    assert counted.taken == 0


def test_faults_and_quotas_apply_to_single_batches(tmp_path, counted):
    async def run():
        async with broker_in_loop(tmp_path) as broker:
            broker.topic_manager.create("faulty", 1, 1, {})
            topic = broker.catalog.topics.by_name["faulty"]
            broker.faults.inject(api="Produce", error="REQUEST_TIMED_OUT", count=1)
            responses = await produced(broker.listeners[0].address, 9, "faulty", topic.id, [batch(), batch()])
            return [response.responses[0].partition_responses[0].error_code for response in responses]

    assert asyncio.run(asyncio.wait_for(run(), SECONDS_MAX)) == [7, 0]
    assert counted.taken == 1

"""A hanging transaction: open in a partition that its coordinator does not know."""

from __future__ import annotations

from headrace.client.admin import AdminClient, ConfigResource, ResourceKind
from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer, encode
from tests.support.peers.connection import Connection
from tests.support.waiting import eventually

BROKER = ConfigResource(ResourceKind.BROKER, "1")
VERIFICATION = "transaction.partition.verification.enable"
TIME_MS = 1_700_000_000_000


def plant_hanging(bootstrap: str, topic: str, transactional_id: str) -> tuple[int, int]:
    """Leave a record of an open transaction in partition 0, and return producer id and epoch.

    Brokers that verify transactions refuse such a batch, so verification is disabled meanwhile.
    """
    with AdminClient(bootstrap) as admin, Connection(bootstrap) as connection:
        producer_id, epoch = admin.fence_producers([transactional_id])[transactional_id]
        batch = encode([Record(0, TIME_MS, None, b"hanging", ())], producer=BatchProducer(producer_id, epoch, 0, True))
        admin.alter_configs({BROKER: {VERIFICATION: "false"}})
        try:
            eventually(
                "the leader accepts the batch",
                lambda: connection.produce(topic, batch, transactional_id=transactional_id).error_code == 0,
            )
        finally:
            admin.alter_configs({BROKER: {VERIFICATION: None}})
    return producer_id, epoch

"""A member of a share group, request by request, for one broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.client.admin import AdminClient
from headrace.wire.api.share_fetch import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from headrace.wire.api.share_groups import ShareGroupHeartbeatRequest
from headrace.wire.records import read_batches
from tests.support.peers.connection import Connection

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
HEARTBEAT_VERSION = 1
FETCH_VERSION = 2
ASSIGNED_SECONDS_MAX = 20


class Delivery(NamedTuple):
    """A record that was delivered."""

    partition: int
    offset: int
    value: bytes
    deliveries: int


class ShareMember:
    """Joins a group, fetches and acknowledges, with a session of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.id = str(uuid.uuid4())
        self.connection = Connection(bootstrap)
        self.epoch = 0
        self.session_epoch = 0
        self.partitions: list[int] = []
        with AdminClient(bootstrap) as admin:
            self.topic_id = admin.describe_topics([topic])[topic].topic_id.bytes

    def join(self, count_min: int = 1) -> ShareMember:
        """Join the group; return when partitions are assigned."""
        deadline = time.monotonic() + ASSIGNED_SECONDS_MAX
        while len(self.partitions) < count_min:
            assert time.monotonic() < deadline, f"timed out after {ASSIGNED_SECONDS_MAX} s waiting for partitions"
            self.heartbeat()
            if len(self.partitions) < count_min:
                time.sleep(0.1)
        return self

    def heartbeat(self) -> None:
        """Send a heartbeat, or join."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.id,
            member_epoch=self.epoch,
            subscribed_topic_names=[self.topic] if self.epoch == 0 else None,
        )
        response = self.connection.call(request, HEARTBEAT_VERSION)
        if response.error_code in (14, 15, 16):  # the coordinator is not ready
            return
        assert not response.error_code, response
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.partitions = [index for row in response.assignment.topic_partitions for index in row.partitions]

    def leave(self) -> None:
        """Leave the group."""
        request = ShareGroupHeartbeatRequest(group_id=self.group, member_id=self.id, member_epoch=-1)
        response = self.connection.call(request, HEARTBEAT_VERSION)
        assert not response.error_code, response

    def request_fetch(self, *, wait_ms: int = 500, records_max: int = 500, mode: int = 0) -> ShareFetchResponse:
        """Send a fetch of the session and return the response."""
        partitions: Sequence[int] = self.partitions if self.session_epoch == 0 else ()
        topics = [
            ShareFetchTopic(
                topic_id=self.topic_id, partitions=[ShareFetchPartition(partition_index=index) for index in partitions]
            )
        ]
        response = self.connection.call(
            ShareFetchRequest(
                group_id=self.group,
                member_id=self.id,
                share_session_epoch=self.session_epoch,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=records_max,
                batch_size=records_max,
                share_acquire_mode=mode,
                topics=topics if partitions else (),
            ),
            FETCH_VERSION,
        )
        if not response.error_code:
            self.session_epoch += 1
        return response

    def fetch(self, *, wait_ms: int = 500, records_max: int = 500, mode: int = 0) -> list[Delivery]:
        """Return the records that a fetch has acquired."""
        response = self.request_fetch(wait_ms=wait_ms, records_max=records_max, mode=mode)
        assert not response.error_code, response
        deliveries = []
        for topic in response.responses:
            for part in topic.partitions:
                assert not part.error_code, part
                records = {
                    record.offset: record.value or b""
                    for batch in read_batches(bytes(part.records))  # type: ignore[arg-type]
                    if not batch.header.is_control
                    for record in batch.records()
                }
                for row in part.acquired_records:
                    for offset in range(row.first_offset, row.last_offset + 1):
                        if offset in records:
                            deliveries.append(
                                Delivery(part.partition_index, offset, records[offset], row.delivery_count)
                            )
        return deliveries

    def fetch_until(self, count: int, *, seconds: float = 20, **limits: int) -> list[Delivery]:
        """Fetch until that many records are acquired."""
        deliveries: list[Delivery] = []
        deadline = time.monotonic() + seconds
        while len(deliveries) < count:
            assert time.monotonic() < deadline, f"timed out after {seconds} s with {len(deliveries)} of {count} records"
            deliveries += self.fetch(**limits)
        return deliveries

    def acknowledge(self, deliveries: Iterable[Delivery], kind: int = ACCEPT) -> list[int]:
        """Acknowledge records one by one; return the error code of each partition."""
        response = self.request_acknowledge(deliveries, kind)
        assert not response.error_code, response
        return [part.error_code for topic in response.responses for part in topic.partitions]

    def request_acknowledge(self, deliveries: Iterable[Delivery], kind: int = ACCEPT) -> ShareAcknowledgeResponse:
        """Send an acknowledgement and return the response."""
        by_partition: dict[int, list[AcknowledgementBatch]] = {}
        for delivery in deliveries:
            batch = AcknowledgementBatch(
                first_offset=delivery.offset, last_offset=delivery.offset, acknowledge_types=[kind]
            )
            by_partition.setdefault(delivery.partition, []).append(batch)
        parts = [
            ShareFetchPartition(partition_index=index, acknowledgement_batches=batches)
            for index, batches in by_partition.items()
        ]
        response = self.connection.call(
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.id,
                share_session_epoch=self.session_epoch,
                is_renew_ack=kind == RENEW,
                topics=[ShareFetchTopic(topic_id=self.topic_id, partitions=parts)],
            ),
            FETCH_VERSION,
        )
        if not response.error_code:
            self.session_epoch += 1
        return response

    def close(self) -> None:
        """Close the connection without leaving: the broker notices that."""
        self.connection.close()

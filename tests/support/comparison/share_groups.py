"""Requests about a share group, to one broker; the responses are compared with those of another one."""

from __future__ import annotations

from typing import Any, ClassVar

from headrace.client.admin import AdminClient
from headrace.client.admin.configs import ConfigResource, ResourceKind
from headrace.wire.layout import Record
from tests.support.comparison.scenario import GroupScenario
from tests.support.peers import librdkafka
from tests.support.peers.broker import Broker

TIME = 1_700_000_000_000
RECORDS = 10
VERSIONS = {
    "ShareGroupHeartbeat": 1,
    "ShareGroupDescribe": 1,
    "ShareFetch": 2,
    "ShareAcknowledge": 2,
    "DescribeShareGroupOffsets": 1,
    "AlterShareGroupOffsets": 0,
    "DeleteShareGroupOffsets": 0,
    "DescribeGroups": 6,
    "ListGroups": 5,
    "DeleteGroups": 2,
    "JoinGroup": 9,
    "OffsetCommit": 9,
    "ConsumerGroupHeartbeat": 1,
}
NO_LIMITS = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}


class ShareGroupScenario(GroupScenario):
    """Requests to one broker, and everything in the responses that can be compared."""

    versions = VERSIONS
    not_compared: ClassVar[tuple[str, ...]] = (
        "error_message",
        "acknowledge_error_message",
        "client_host",
        "throttle_time_ms",
        "records",
    )

    def prepare(self, broker: Broker, admin: AdminClient) -> None:
        librdkafka.produce(
            broker.bootstrap, self.topic, [Record(n, TIME + n, None, b"%d" % n, ()) for n in range(RECORDS)]
        )
        admin.alter_configs({ConfigResource(ResourceKind.GROUP, self.group): {"share.auto.offset.reset": "earliest"}})

    def beat(self, step: str, member: str, epoch: int, /, **fields: Any) -> Any:
        return self.call(
            step,
            "ShareGroupHeartbeat",
            **{"group_id": self.group, "member_id": member, "member_epoch": epoch, **fields},
        )

    def join(self, member: str) -> None:
        """Join and send heartbeats until partitions are assigned; only that they are is compared."""
        epoch = [0]

        def is_assigned() -> bool:
            fields = {"group_id": self.group, "member_id": member, "member_epoch": epoch[0]}
            if epoch[0] == 0:
                fields["subscribed_topic_names"] = [self.topic]
            response = self.send("ShareGroupHeartbeat", fields)
            assert response.error_code in (0, 14, 15, 16), response
            epoch[0] = response.member_epoch
            return response.assignment is not None and bool(response.assignment.topic_partitions)

        self.until(is_assigned)

    def fetch(self, step: str, member: str, epoch: int, /, acknowledge: list[Any] | None = None, **fields: Any) -> Any:
        parts = [{"partition_index": 0, "acknowledgement_batches": acknowledge or []}]
        topics = [{"topic_id": self.topic_id, "partitions": parts}] if epoch == 0 or acknowledge else []
        return self.call(
            step,
            "ShareFetch",
            **{
                "group_id": self.group,
                "member_id": member,
                "share_session_epoch": epoch,
                "topics": topics,
                **NO_LIMITS,
                **fields,
            },
        )

    def acknowledge(self, step: str, member: str, epoch: int, *rows: tuple[int, int, list[int]], **fields: Any) -> Any:
        parts = [{"partition_index": 0, "acknowledgement_batches": batches(*rows)}]
        return self.call(
            step,
            "ShareAcknowledge",
            group_id=self.group,
            member_id=member,
            share_session_epoch=epoch,
            topics=[{"topic_id": self.topic_id, "partitions": parts}],
            **fields,
        )

    def describe_offsets(self, step: str) -> Any:
        topics = [{"topic_name": self.topic, "partitions": [0]}]
        return self.call(step, "DescribeShareGroupOffsets", groups=[{"group_id": self.group, "topics": topics}])


def batches(*rows: tuple[int, int, list[int]]) -> list[dict[str, Any]]:
    return [{"first_offset": first, "last_offset": last, "acknowledge_types": types} for first, last, types in rows]

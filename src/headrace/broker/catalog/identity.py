"""Who the cluster is, and which producer ids it has handed out."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator

from headrace.broker.catalog.journal import Event

PRODUCER_ID_BLOCK = 1000
"""Ids are reserved on disk by the block, so that most of them cost no write."""
PRODUCER_IDS_SKIPPED = 1000 * PRODUCER_ID_BLOCK
"""So many are left out when a change of the catalog was lost: it may have reserved some. There are 2⁶³ of them."""


class Identity:
    """The cluster's id, and the first producer id that is not reserved yet."""

    kinds = ("cluster", "producer-ids")

    def __init__(self) -> None:
        self.cluster_id = ""
        self.next_producer_id = 0

    @staticmethod
    def founding() -> list[Event]:
        """The events that begin a cluster."""
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        return [{"kind": "cluster", "id": text}]

    def reserve_producer_ids(self, first: int = 0) -> Event:
        """The event that reserves the next block; it begins at `next_producer_id`, but not below `first`."""
        return {"kind": "producer-ids", "next": max(self.next_producer_id, first) + PRODUCER_ID_BLOCK}

    def skip_producer_ids(self) -> Event:
        """The event that leaves out ids which may have been reserved by a change that is lost."""
        return {"kind": "producer-ids", "next": self.next_producer_id + PRODUCER_IDS_SKIPPED}

    def apply(self, event: Event) -> None:
        if event["kind"] == "cluster":
            self.cluster_id = event["id"]
        else:
            self.next_producer_id = max(self.next_producer_id, event["next"])  # none is given out twice

    def snapshot(self) -> Iterator[Event]:
        yield {"kind": "cluster", "id": self.cluster_id}
        yield {"kind": "producer-ids", "next": self.next_producer_id}

    def changes_to(self, target: Identity) -> Iterator[Event]:
        """Events that make this section what `target` is."""
        if (self.cluster_id, self.next_producer_id) != (target.cluster_id, target.next_producer_id):
            yield from target.snapshot()

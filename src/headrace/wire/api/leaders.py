"""The new leader of a partition and its address, in responses to requests that reached another broker (KIP-951)."""

from __future__ import annotations

from headrace.wire.fields import int32, string
from headrace.wire.schema import Struct


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)

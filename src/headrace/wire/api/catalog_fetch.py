"""Key 30000, our own: the changes of the controller's catalog, for a broker that follows it. Waits for the next one."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, array, boolean, bytes_, int16, int32, int64, string


class CatalogFetchRequest(Message, api_key=30_000, versions="0-0", flexible="0+"):
    broker_id: int = int32()
    generation: int = int64(default=-1)
    next_number: int = int64()
    max_wait_ms: int = int32()


class CatalogFetchResponse(Message, api_key=30_000, versions="0-0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    controller_id: int = int32()
    generation: int = int64()
    next_number: int = int64()  # after these changes
    is_snapshot: bool = boolean()
    changes: Sequence[bytes] = array(bytes_)  # each a list of events, as JSON
    controller: str = string(tag=0, default="")  # HOST:PORT, with NOT_CONTROLLER: ask that one

"""Key 63: a broker tells the controller that it lives. Between brokers, and so the last version only."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, array, boolean, int16, int32, int64, uuid


class BrokerHeartbeatRequest(Message, api_key=63, versions="1-1", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64()
    want_fence: bool = boolean()
    want_shut_down: bool = boolean()
    offline_log_dirs: Sequence[bytes] = array(uuid, tag=0)


class BrokerHeartbeatResponse(Message, api_key=63, versions="1-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    is_caught_up: bool = boolean()
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean()

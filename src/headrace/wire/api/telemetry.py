"""Metrics that clients push to brokers (KIP-714)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, boolean, bytes_, int8, int16, int32, string, uuid
from headrace.wire.schema import Message, RequestMessage

# Key 71: which metrics a client is to push, and how often.


class GetTelemetrySubscriptionsRequest(
    RequestMessage["GetTelemetrySubscriptionsResponse"], api_key=71, versions="0-0", flexible="0+"
):
    client_instance_id: bytes = uuid()


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    accepted_compression_types: Sequence[int] = array(int8)
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: Sequence[str] = array(string)


# Key 72: push metrics.


class PushTelemetryRequest(RequestMessage["PushTelemetryResponse"], api_key=72, versions="0-0", flexible="0+"):
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = bytes_()


class PushTelemetryResponse(Message, api_key=72, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()

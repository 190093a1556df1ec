"""GetTelemetrySubscriptions and PushTelemetry (KIP-714). Clients need no permissions for them."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from headrace.broker.client_metrics import otlp
from headrace.broker.client_metrics.instances import COMPRESSION_TYPES, new_instance_id
from headrace.broker.client_metrics.options import ClientFacts
from headrace.broker.context import Context, HandlerResult
from headrace.errors import BrokerError, Code, DecompressedSizeError, WireError
from headrace.wire import compression
from headrace.wire.api.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from headrace.wire.fields import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

DECOMPRESSED_FACTOR_MAX = 8
"""How many times telemetry.max.bytes pushed metrics may have when they are decompressed."""


def handle_get_telemetry_subscriptions(
    broker: Broker, context: Context, request: GetTelemetrySubscriptionsRequest
) -> HandlerResult:
    """Return which metrics a client is to push, and how often. A new client gets its instance id."""
    is_new = request.client_instance_id == ZERO_UUID
    instance_id = new_instance_id() if is_new else bytes(request.client_instance_id)
    assignment = broker.client_instances.get(instance_id, _facts(context, instance_id))
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=assignment.subscription_id,
        accepted_compression_types=COMPRESSION_TYPES,
        push_interval_ms=assignment.interval_ms,
        telemetry_max_bytes=_bytes_max(broker),
        delta_temporality=False,  # counters as totals: a lost push loses nothing
        requested_metrics=assignment.metrics,
    )


async def handle_push_telemetry(
    broker: Broker, context: Context, request: PushTelemetryRequest
) -> PushTelemetryResponse:
    """Store the metrics of a client. They are decompressed and decoded on a thread."""
    instance_id, instances = bytes(request.client_instance_id), broker.client_instances
    if instance_id == ZERO_UUID:
        raise BrokerError("invalid client instance id: expected that of the subscription", code=Code.INVALID_REQUEST)
    facts = _facts(context, instance_id)
    instances.check_push(instance_id, facts, request.subscription_id, is_last=request.terminating)
    try:
        points = await _decode(broker, request)
    except BrokerError as error:
        instances.reject(instance_id, error.code)
        raise
    instances.store(instance_id, points)
    return PushTelemetryResponse()


async def _decode(broker: Broker, request: PushTelemetryRequest) -> list[otlp.Point]:
    codec, size, bytes_max = request.compression_type, len(request.metrics), _bytes_max(broker)
    if codec != compression.NONE and codec not in COMPRESSION_TYPES:
        raise BrokerError(f"unknown compression type {codec}", code=Code.UNSUPPORTED_COMPRESSION_TYPE)
    if size > bytes_max:
        raise BrokerError(f"{size} bytes of metrics: telemetry.max.bytes is {bytes_max}", code=Code.TELEMETRY_TOO_LARGE)
    if not size:
        return []
    data = bytes(request.metrics)  # the request's buffer is used again
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(broker.checking_threads, _decompress_and_decode, codec, data, bytes_max)


def _decompress_and_decode(codec: int, data: bytes, bytes_max: int) -> list[otlp.Point]:
    try:
        return otlp.decode(bytes(compression.decompress(codec, data, DECOMPRESSED_FACTOR_MAX * bytes_max)))
    except DecompressedSizeError as error:
        raise BrokerError(str(error), code=Code.TELEMETRY_TOO_LARGE) from None
    except WireError as error:
        raise BrokerError(f"invalid metrics: {error}", code=Code.INVALID_RECORD) from None


def _facts(context: Context, instance_id: bytes) -> ClientFacts:
    session = context.session
    return ClientFacts(
        str(uuid.UUID(bytes=instance_id)),
        context.client_id or "",
        session.software_name,
        session.software_version,
        session.host,
        str(session.port),
    )


def _bytes_max(broker: Broker) -> int:
    return broker.config.of(int, "telemetry.max.bytes")

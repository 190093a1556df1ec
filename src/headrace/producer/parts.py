"""What each part of a producer wants to know of its settings."""

from __future__ import annotations

from headrace.client import tls
from headrace.client.connection import ConnectionSettings
from headrace.client.network import NetworkSettings
from headrace.producer.accumulator import AccumulatorSettings
from headrace.producer.sender import SenderSettings
from headrace.producer.settings import ProducerSettings


def accumulator_settings(settings: ProducerSettings) -> AccumulatorSettings:
    return AccumulatorSettings(
        batch_bytes=settings.batch_size,
        linger_ms=settings.linger_ms,
        max_request_bytes=settings.max_request_size,
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        delivery_timeout_ms=settings.delivery_timeout_ms,
        codec=settings.codec,
        level=settings.compression_level,
        hashes_keys=not settings.partitioner_ignore_keys,
    )


def connection_settings(settings: ProducerSettings) -> ConnectionSettings:
    return ConnectionSettings(
        client_id=settings.client_id,
        request_timeout_ms=settings.request_timeout_ms,
        connect_timeout_ms=settings.connect_timeout_ms,
        connect_timeout_max_ms=settings.connect_timeout_max_ms,
        send_buffer_bytes=settings.send_buffer_bytes,
        receive_buffer_bytes=settings.receive_buffer_bytes,
        tls_context=None if settings.tls is None else tls.context(settings.tls),
        mechanism_factory=None if settings.sasl is None else settings.sasl.mechanism,
    )


def network_settings(settings: ProducerSettings) -> NetworkSettings:
    return NetworkSettings(
        max_in_flight=settings.max_in_flight,
        reconnect_backoff_ms=settings.reconnect_backoff_ms,
        reconnect_backoff_max_ms=settings.reconnect_backoff_max_ms,
        connections_max_idle_ms=settings.connections_max_idle_ms,
    )


def sender_settings(settings: ProducerSettings) -> SenderSettings:
    return SenderSettings(
        acks=settings.acks,
        retries=settings.retries,
        request_timeout_ms=settings.request_timeout_ms,
        delivery_timeout_ms=settings.delivery_timeout_ms,
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        keeps_order_by_muting=settings.max_in_flight == 1 and not settings.enable_idempotence,
    )

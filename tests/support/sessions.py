"""SASL sessions that are renewed on their connection, also on a busy machine."""

from __future__ import annotations

import time

from headrace.client.admin import AdminClient
from headrace.config.clock import SYSTEM_CLOCK

LIFETIME_MS = 3_000
"""Of a session, by the broker. A renewal within a second of the last one is refused by brokers (KIP-368)."""
SPEED = 2
"""A client renews at 85 to 95 % of the lifetime: by this clock more than half of it is left then."""
RENEWALS = 2
POLL_MS = 100


class FastClock:
    """The system's clock, at a multiple of its speed."""

    def monotonic_ms(self) -> float:
        return SPEED * SYSTEM_CLOCK.monotonic_ms()

    def time_ms(self) -> int:
        return SYSTEM_CLOCK.time_ms()


def assert_renewed_on_the_same_connection(admin: AdminClient) -> None:
    """Send requests for longer than two sessions last, and check that the connection stays. Needs a FastClock."""
    assert isinstance(admin.client.clock, FastClock)
    assert admin.describe_cluster().brokers
    network = admin.client.network
    connections = dict(network._connections)
    renewed_after_s = LIFETIME_MS * (RENEWALS - 1) / SPEED / 1000
    end = time.monotonic() + renewed_after_s + LIFETIME_MS / 1000
    while time.monotonic() < end:
        assert admin.describe_cluster().brokers
        admin.client.poll(POLL_MS)
    assert {node: network._connections[node] for node in connections} == connections
    assert network.last_failure is None

"""The first connection to a cluster, and the errors when it fails.

A client retries for a minute before it gives up, which suits a job but not a person at a terminal. Here an address
that refuses the connection is reported at once, and one that does not respond like a Kafka broker after a few seconds.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.errors import BrokerNotRunningError, CommandError
from headrace.client.addresses import Address, Endpoint, parse, resolve
from headrace.errors import (
    AuthenticationError,
    ConnectionFailedError,
    TimedOutError,
    TlsError,
    WireError,
)

if TYPE_CHECKING:
    from headrace.client.blocking import BlockingClient

CONNECT_SECONDS_MAX = 5.0
METADATA_MS_MAX = 8_000.0
FAILING_MS_MAX = 1_000.0
"""How long consecutive failures are retried."""
_CONNECTION_ERRORS = (AuthenticationError, ConnectionFailedError, TimedOutError, WireError)


def check_reachable(bootstrap: str) -> None:
    """Connect to the first address that accepts; raise BrokerNotRunningError with the failure of each if none does."""
    failures: list[str] = []
    for endpoint in parse(bootstrap):
        try:
            addresses = resolve(endpoint)
        except OSError as error:
            failures.append(error.strerror or str(error))
            continue
        for address in addresses:
            failure = _connect(address, endpoint)
            if failure is None:
                return
            failures.append(failure)
    raise BrokerNotRunningError(
        f"no broker is reachable: {'; '.join(failures)}. Check that it runs and that -b is correct. "
        f"{_doctor_hint(bootstrap)}"
    )


def _connect(address: Address, endpoint: Endpoint) -> str | None:
    """Return why an address cannot be connected to, or None if it can."""
    label = str(endpoint) if str(address) == str(endpoint) else f"{endpoint} ({address})"
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.settimeout(CONNECT_SECONDS_MAX)
            sock.connect(address.sockaddr)
    except TimeoutError:
        return f"{label} timed out after {CONNECT_SECONDS_MAX:g} s"
    except ConnectionRefusedError:
        return f"{label} refused the connection: nothing listens on that port"
    except OSError as error:
        return f"{label}: {error.strerror or error}"
    return None


def fetch_metadata(client: BlockingClient) -> None:
    """Return once a broker has sent metadata; fail after about a second of connection errors."""
    metadata, network = client.metadata, client.network
    deadline = client.deadline(min(METADATA_MS_MAX, client.settings.timeout_ms))
    failing_since: float | None = None
    update = metadata.request_update()
    while not metadata.wait_for_update(update, 0):
        now, failure = client.clock.monotonic_ms(), network.last_failure
        if failure is None:
            failing_since = None
        elif failing_since is None:
            failing_since = now
        elif now - failing_since >= FAILING_MS_MAX:
            raise ConnectionFailedError(str(failure))
        if now >= deadline:
            raise TimedOutError(
                f"timed out after {METADATA_MS_MAX / 1000:g} s waiting for a response on an open connection; the "
                "listener may expect TLS (security.protocol), or is not a Kafka broker"
            )
        client.poll(min(deadline - now, FAILING_MS_MAX))


@contextmanager
def explained(bootstrap: str) -> Iterator[None]:
    """Add the address and a hint to connection errors."""
    try:
        yield
    except _CONNECTION_ERRORS as error:
        kind = "TLS: " if isinstance(error, TlsError) else ""
        if isinstance(error, AuthenticationError) and not kind:
            kind = "authentication failed: "
        text = str(error)
        raise CommandError(
            f"{bootstrap}: {kind}{text}{'' if text[-1:] in '.?' else '.'} {_doctor_hint(bootstrap)}"
        ) from error


def _doctor_hint(bootstrap: str) -> str:
    return f"Run `headrace doctor -b {bootstrap}` for details."

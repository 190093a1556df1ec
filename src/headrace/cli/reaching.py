"""The first contact with a cluster, and what to say when there is none.

A client tries for a minute before it gives up, which is right for a job and wrong for a person at a terminal: here
an address that refuses is told at once, and one that does not answer as Kafka does after some seconds.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.output import CommandError, NotRunningError
from headrace.errors import (
    AuthenticationError,
    ConnectionFailedError,
    HeadraceError,
    TimedOutError,
    TlsError,
    WireError,
)

if TYPE_CHECKING:
    from headrace.client.addresses import Address, Endpoint
    from headrace.client.blocking import BlockingClient

DIAL_SECONDS_MAX = 5.0
CONTACT_MS_MAX = 8_000.0
FAILING_MS_MAX = 1_000.0
"""Of failures in a row, after which it is not worth a person's time to try on."""
_OF_CONNECTIONS = (AuthenticationError, ConnectionFailedError, TimedOutError, WireError)


def dial(bootstrap: str) -> None:
    """Find one address that takes a connection; raise a NotRunningError that says which address failed how."""
    from headrace.client.addresses import parse, resolve

    failures: list[str] = []
    for endpoint in parse(bootstrap):
        try:
            addresses = resolve(endpoint)
        except OSError as error:
            failures.append(error.strerror or str(error))
            continue
        for address in addresses:
            failure = _try(address, endpoint)
            if failure is None:
                return
            failures.append(failure)
    why = "; ".join(failures)
    raise NotRunningError(f"no broker can be reached: {why}. Is it running, and is -b right? {_doctor(bootstrap)}")


def _try(address: Address, endpoint: Endpoint) -> str | None:
    """Why an address takes no connection; None if it does."""
    at = str(endpoint) if str(address) == str(endpoint) else f"{endpoint} ({address})"
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as dialled:
            dialled.settimeout(DIAL_SECONDS_MAX)
            dialled.connect(address.sockaddr)
    except TimeoutError:
        return f"{at} did not answer within {DIAL_SECONDS_MAX:g} s"
    except ConnectionRefusedError:
        return f"{at} refused the connection, for nothing listens there"
    except OSError as error:
        return f"{at}: {error.strerror or error}"
    return None


def make_contact(client: BlockingClient) -> None:
    """Come back when a broker has answered as one of Kafka's does."""
    metadata, network = client.metadata, client.network
    deadline = client.deadline(min(CONTACT_MS_MAX, client.settings.timeout_ms))
    failing_since: float | None = None
    update_seq = metadata.request_update()
    while not metadata.wait_for_update(update_seq, 0):
        now, failure = client.clock.monotonic_ms(), network.last_failure
        if failure is None:
            failing_since = None
        elif failing_since is None:
            failing_since = now
        elif now - failing_since >= FAILING_MS_MAX:
            raise ConnectionFailedError(str(failure))
        if now >= deadline:
            raise TimedOutError(
                f"it took the connection and then did not answer for {CONTACT_MS_MAX / 1000:g} s: a listener with TLS "
                f"waits like that (security.protocol), and so does what is no Kafka"
            )
        client.poll(min(deadline - now, FAILING_MS_MAX))


@contextmanager
def explained(bootstrap: str) -> Iterator[None]:
    """Errors of connections, with the address and a way to find out more."""
    try:
        yield
    except HeadraceError as error:
        if not isinstance(error, _OF_CONNECTIONS):
            raise
        kind = "TLS: " if isinstance(error, TlsError) else "refused: " if isinstance(error, AuthenticationError) else ""
        said = str(error)
        raise CommandError(
            f"{bootstrap}: {kind}{said}{'' if said[-1:] in '.?' else '.'} {_doctor(bootstrap)}"
        ) from error


def _doctor(bootstrap: str) -> str:
    return f"`headrace doctor -b {bootstrap}` says more."

"""The part of `headrace doctor` that looks at brokers, step by step, each of which needs the one before it.

name → TCP → what speaks there → TLS → SASL → metadata → the addresses that the cluster tells its clients
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from headrace.cli.findings import Finding, fail, ok, warn
from headrace.cli.listener_probe import (
    ANSWER_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    Heard,
    Speaks,
    ask_listener,
    connected,
    listen_to,
    secured,
)
from headrace.client import tls
from headrace.client.addresses import Address, Endpoint, resolve
from headrace.client.blocking import BlockingClient, ClientSettings
from headrace.client.metadata import Cluster
from headrace.errors import AuthenticationError, HeadraceError
from headrace.wire.api.api_versions import ApiVersionsResponse
from headrace.wire.api.fetch import FetchRequest
from headrace.wire.api.init_producer_id import InitProducerIdRequest
from headrace.wire.api.metadata import MetadataRequest
from headrace.wire.api.produce import ProduceRequest
from headrace.wire.schema import Message

CLUSTER_MS_MAX = 10_000
CERTIFICATE_DAYS_MIN = 14
_NEEDED: dict[str, type[Message]] = {"Produce": ProduceRequest, "Fetch": FetchRequest, "Metadata": MetadataRequest}
_LOOPBACK = ("127.", "::1", "localhost")


def check_brokers(endpoints: list[Endpoint], settings: ClientSettings) -> Iterator[Finding]:
    """Every bootstrap address, then every address that the cluster advertises."""
    cluster: Cluster | None = None
    via: Endpoint | None = None
    for endpoint in endpoints:
        address = yield from _reach(endpoint)
        if address is None or not (yield from _listener(endpoint, address, settings)):
            continue
        found = yield from _metadata(endpoint, settings)
        if found is not None:
            cluster, via = found, endpoint
    if cluster is not None and via is not None:
        yield from _advertised(cluster, via, endpoints)


# -- name and TCP ----------------------------------------------------------------------------------


def _reach(endpoint: Endpoint) -> Generator[Finding, None, Address | None]:
    """Findings; the address that answered is returned."""
    try:
        addresses = resolve(endpoint)
    except OSError as error:
        yield fail(
            f"{endpoint} name",
            error.strerror or str(error),
            "look for a slip in the name; if it is right, this machine's DNS or /etc/hosts does not have it",
        )
        return None
    numbers = [str(address.sockaddr[0]) for address in addresses]
    if numbers != [endpoint.host]:
        yield ok(f"{endpoint} name", f"{endpoint.host} is {', '.join(numbers)}")
    refusals: list[OSError] = []
    for address in addresses:
        try:
            with connected(address):
                pass
        except OSError as error:
            refusals.append(error)
        else:
            others = f"; {len(refusals)} of its addresses before that did not" if refusals else ""
            yield ok(f"{endpoint} tcp", f"{address} takes connections{others}")
            return address
    yield fail(f"{endpoint} tcp", *_unreachable(endpoint, refusals[0]))
    return None


def _unreachable(endpoint: Endpoint, error: OSError) -> tuple[str, str]:
    if isinstance(error, ConnectionRefusedError):
        return (
            f"{endpoint} refuses connections: nothing listens on port {endpoint.port} there",
            "start the broker (`headrace broker start` starts one here), or correct the port",
        )
    if isinstance(error, TimeoutError):
        return (
            f"{endpoint} did not answer in {CONNECT_SECONDS_MAX:g} s",
            "a firewall drops the packets, or the address is wrong: try the same from a machine beside the broker",
        )
    return f"{endpoint} cannot be reached: {error.strerror or error}", "see to the network between here and there"


# -- what speaks there -----------------------------------------------------------------------------


def _listener(endpoint: Endpoint, address: Address, settings: ClientSettings) -> Generator[Finding, None, bool]:
    """Findings; True is returned if a client with these settings has a chance."""
    context = None
    if settings.tls is not None:
        context = tls.context(settings.tls)
        finding = _handshake(endpoint, address, context)
        if finding.failed:  # for what it is, rather than for what TLS makes of it
            yield _wrong_protocol(endpoint, listen_to(address), settings) or finding
            return False
        yield finding
    elif (problem := _wrong_protocol(endpoint, listen_to(address), settings)) is not None:
        yield problem
        return False
    try:
        offered, answer = ask_listener(address, endpoint.host, context)
    except (OSError, HeadraceError) as error:
        hint = "a listener for clients answers: is it the port of a controller, or of another program?"
        yield fail(f"{endpoint} protocol", f"it does not say what it speaks, nor whether it wants SASL: {error}", hint)
        return False
    findings = [_versions(endpoint, answer), _sasl(endpoint, offered, settings)]
    yield from findings
    return not any(finding.failed for finding in findings)


def _wrong_protocol(endpoint: Endpoint, heard: Heard, settings: ClientSettings) -> Finding | None:
    check = f"{endpoint} protocol"
    prefix = "SASL_" if settings.sasl is not None else ""
    if heard.speaks is Speaks.HTTP:
        remedy = "use the port of the broker; 8080, 8081, 8082 and 8083 are usually those of consoles and registries"
        return fail(check, f"an HTTP server answers at {endpoint}, not a Kafka broker", remedy)
    if heard.speaks is Speaks.OTHER:
        remedy = "it is the port of another program: correct it"
        return fail(check, f"{endpoint} does not speak Kafka; it says {heard.shown!r}", remedy)
    if heard.speaks is Speaks.TLS and settings.tls is None:
        remedy = (
            f"-X security.protocol={prefix}SSL, and -X ssl.truststore.location=FILE if its certificate is of an "
            "authority of your own"
        )
        return fail(check, f"{endpoint} speaks TLS, and the settings do not", remedy)
    if heard.speaks is Speaks.KAFKA and settings.tls is not None:
        remedy = f"-X security.protocol={prefix}PLAINTEXT, or use the port of its TLS listener"
        return fail(check, f"{endpoint} speaks Kafka without TLS, and the settings ask for TLS", remedy)
    if heard.speaks is Speaks.NOTHING:
        remedy = "it may hang, be a proxy without a broker behind it, or another program: look at what listens there"
        return fail(check, f"{endpoint} takes connections and does not answer within {ANSWER_SECONDS_MAX:g} s", remedy)
    return None


def _versions(endpoint: Endpoint, answer: ApiVersionsResponse) -> Finding:
    ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    check = f"{endpoint} protocol"
    spoken = ", ".join(
        f"{name} {low} to {high}" for name, cls in _NEEDED.items() for low, high in [ranges.get(cls.api_key, (0, -1))]
    )
    for name, cls in _NEEDED.items():
        low, high = ranges.get(cls.api_key, (0, -1))
        if high < cls.versions.first or low > cls.versions.last:
            ours = f"{cls.versions.first} to {cls.versions.last}"
            remedy = f"headrace speaks {name} {ours}: take another release of headrace or of the broker"
            return fail(check, f"it speaks {name} in versions {low} to {high} only", remedy)
    if InitProducerIdRequest.api_key not in ranges:
        remedy = "set enable.idempotence=false, or upgrade to Kafka 0.11 or newer"
        return warn(check, f"an old broker, without transactions and idempotence ({spoken})", remedy)
    return ok(check, f"Kafka, {len(ranges)} APIs: {spoken}")


def _handshake(endpoint: Endpoint, address: Address, context: ssl.SSLContext) -> Finding:
    check = f"{endpoint} tls"
    try:
        with secured(address, endpoint.host, context) as sock:
            assert isinstance(sock, ssl.SSLSocket)
            version, certificate = sock.version(), sock.getpeercert() or {}
    except (OSError, HeadraceError) as error:
        fact, _, remedy = str(error).partition("; ")
        return fail(check, fact, remedy or "compare security.protocol with the broker's listeners")
    expires = certificate.get("notAfter")
    if not isinstance(expires, str):
        return ok(check, f"{version}")
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(expires), UTC)
    found = f"{version}, its certificate is good until {end:%Y-%m-%d}"
    days_left = (end - datetime.now(UTC)).days
    if days_left < CERTIFICATE_DAYS_MIN:
        return warn(check, f"{found}: {days_left} days", "renew the certificate of the broker")
    return ok(check, found)


def _sasl(endpoint: Endpoint, offered: tuple[str, ...] | None, settings: ClientSettings) -> Finding:
    check = f"{endpoint} sasl"
    kind = "PLAINTEXT" if settings.tls is None else "SSL"
    if offered is None:
        if settings.sasl is None:
            return ok(check, "none wanted")
        return fail(check, "the listener wants no SASL", f"-X security.protocol={kind}, or use a SASL listener's port")
    names = ", ".join(offered)
    if settings.sasl is None:
        remedy = (
            f"-X security.protocol=SASL_{kind} -X sasl.mechanism={offered[0] if offered else '…'} "
            "-X sasl.username=… -X sasl.password=…"
        )
        return fail(check, f"the listener wants SASL ({names}), and the settings have none", remedy)
    if settings.sasl.name not in offered:
        return fail(
            check,
            f"the listener offers {names}, not {settings.sasl.name}",
            f"-X sasl.mechanism={offered[0] if offered else '…'}",
        )
    return ok(check, f"{settings.sasl.name} is offered")


# -- the cluster -----------------------------------------------------------------------------------


def _metadata(endpoint: Endpoint, settings: ClientSettings) -> Generator[Finding, None, Cluster | None]:
    """Findings; what the cluster says of itself is returned. Here a real client connects, and logs in."""
    check = f"{endpoint} cluster"
    limited = replace(
        settings,
        bootstrap_servers=[str(endpoint)],
        timeout_ms=min(settings.timeout_ms, CLUSTER_MS_MAX),
        request_timeout_ms=min(settings.request_timeout_ms, CLUSTER_MS_MAX),
    )
    try:
        with BlockingClient(limited) as client:
            cluster = client.cluster((), client.deadline())
    except AuthenticationError as error:
        fact, _, remedy = str(error).partition("; ")
        yield fail(f"{endpoint} login", fact, remedy or "correct sasl.username and sasl.password")
        return None
    except HeadraceError as error:
        yield fail(check, str(error), "look into the log of the broker")
        return None
    if settings.sasl is not None:
        yield ok(f"{endpoint} login", f"{settings.sasl.name} succeeded")
    count = len(cluster.brokers)
    yield ok(check, f"{count} broker{'' if count == 1 else 's'}, controller {cluster.controller_id}")
    return cluster


def _advertised(cluster: Cluster, via: Endpoint, known: list[Endpoint]) -> Iterator[Finding]:
    """Clients read from and write to these addresses, and no others."""
    for node_id, endpoint in sorted(cluster.brokers.items()):
        check = f"broker {node_id} advertised as {endpoint}"
        remedy = f"set advertised.listeners of broker {node_id} to an address that this machine can reach"
        if _is_loopback(endpoint.host) and not _is_loopback(via.host):
            fact = f"{via} tells clients to connect to {endpoint}, which is their own machine"
            yield fail(check, fact, remedy)
            continue
        if endpoint in known:
            yield ok(check, "as it was given")
            continue
        try:
            address = resolve(endpoint)[0]
            with connected(address):
                pass
        except socket.gaierror as error:
            yield fail(check, error.strerror or str(error), remedy)
        except OSError as error:
            yield fail(check, _unreachable(endpoint, error)[0], remedy)
        else:
            yield ok(check, f"{address} takes connections")


def _is_loopback(host: str) -> bool:
    return host.startswith(_LOOPBACK)

"""Checks of `headrace doctor`: brokers. Each step depends on the one before it.

DNS → TCP → protocol → TLS → SASL → metadata → advertised addresses
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from headrace.cli.doctor_machine import Finding, fail, ok, warn
from headrace.cli.listener_probe import (
    CONNECT_SECONDS_MAX,
    RESPONSE_SECONDS_MAX,
    ListenerProtocol,
    ProbeResult,
    connected,
    probe,
    query_listener,
    secured,
)
from headrace.cli.output import count_text
from headrace.cli.shared_options import is_loopback
from headrace.client import tls
from headrace.client.addresses import Address, Endpoint, resolve
from headrace.client.blocking import BlockingClient, ClientSettings
from headrace.client.metadata import Cluster
from headrace.errors import AuthenticationError, HeadraceError
from headrace.wire.api.fetch import FetchRequest
from headrace.wire.api.metadata import ApiVersionsResponse, MetadataRequest
from headrace.wire.api.produce import ProduceRequest
from headrace.wire.api.transactions import InitProducerIdRequest
from headrace.wire.schema import Message

METADATA_MS_MAX = 10_000
CERTIFICATE_DAYS_MIN = 14
_REQUIRED_APIS: dict[str, type[Message]] = {
    "Produce": ProduceRequest,
    "Fetch": FetchRequest,
    "Metadata": MetadataRequest,
}


def check_brokers(endpoints: list[Endpoint], settings: ClientSettings) -> Iterator[Finding]:
    """Check every bootstrap address, then every address that the cluster advertises."""
    cluster: Cluster | None = None
    via: Endpoint | None = None
    for endpoint in endpoints:
        address = yield from _check_reachable(endpoint)
        if address is None or not (yield from _check_listener(endpoint, address, settings)):
            continue
        described = yield from _check_metadata(endpoint, settings)
        if described is not None:
            cluster, via = described, endpoint
    if cluster is not None and via is not None:
        yield from _check_advertised(cluster, via, endpoints)


# -- DNS and TCP -----------------------------------------------------------------------------------


def _check_reachable(endpoint: Endpoint) -> Generator[Finding, None, Address | None]:
    """Yield findings; return the address that accepted a connection."""
    try:
        addresses = resolve(endpoint)
    except OSError as error:
        yield fail(
            f"{endpoint} name",
            error.strerror or str(error),
            "check the spelling of the host name, and the DNS or /etc/hosts of this machine",
        )
        return None
    numbers = [str(address.sockaddr[0]) for address in addresses]
    if numbers != [endpoint.host]:
        yield ok(f"{endpoint} name", f"{endpoint.host} resolves to {', '.join(numbers)}")
    failures: list[OSError] = []
    for address in addresses:
        try:
            with connected(address):
                pass
        except OSError as error:
            failures.append(error)
        else:
            others = f"; {len(failures)} other addresses of this host did not" if failures else ""
            yield ok(f"{endpoint} tcp", f"{address} accepts connections{others}")
            return address
    yield fail(f"{endpoint} tcp", *_unreachable(endpoint, failures[0]))
    return None


def _unreachable(endpoint: Endpoint, error: OSError) -> tuple[str, str]:
    """Return fact and remedy."""
    if isinstance(error, ConnectionRefusedError):
        return (
            f"{endpoint} refused the connection: nothing listens on port {endpoint.port}",
            "start the broker (here: `headrace broker start`), or correct the port",
        )
    if isinstance(error, TimeoutError):
        return (
            f"{endpoint} timed out after {CONNECT_SECONDS_MAX:g} s",
            "check the address and firewalls: try to connect from a machine in the broker's network",
        )
    return f"{endpoint} is not reachable: {error.strerror or error}", "check the network between here and the broker"


# -- protocol, TLS, SASL ---------------------------------------------------------------------------


def _check_listener(endpoint: Endpoint, address: Address, settings: ClientSettings) -> Generator[Finding, None, bool]:
    """Yield findings; return whether a client with these settings can connect."""
    context = None
    if settings.tls is not None:
        context = tls.context(settings.tls)
        finding = _check_tls(endpoint, address, context)
        if finding.failed:  # the actual protocol explains more than the TLS error
            yield _protocol_mismatch(endpoint, probe(address), settings) or finding
            return False
        yield finding
    elif (problem := _protocol_mismatch(endpoint, probe(address), settings)) is not None:
        yield problem
        return False
    try:
        mechanisms, versions = query_listener(address, endpoint.host, context)
    except (OSError, HeadraceError) as error:
        remedy = "check the port: it may belong to a controller or another program"
        yield fail(f"{endpoint} protocol", f"no response to ApiVersions or SaslHandshake: {error}", remedy)
        return False
    findings = [_check_versions(endpoint, versions), _check_sasl(endpoint, mechanisms, settings)]
    yield from findings
    return not any(finding.failed for finding in findings)


def _protocol_mismatch(endpoint: Endpoint, result: ProbeResult, settings: ClientSettings) -> Finding | None:
    check = f"{endpoint} protocol"
    prefix = "SASL_" if settings.sasl is not None else ""
    if result.protocol is ListenerProtocol.HTTP:
        remedy = "use the port of the broker; 8080 to 8083 are usually consoles and schema registries"
        return fail(check, f"{endpoint} is an HTTP server, not a Kafka broker", remedy)
    if result.protocol is ListenerProtocol.OTHER:
        remedy = "correct the port: it belongs to another program"
        return fail(check, f"{endpoint} is not a Kafka broker; it sent {result.excerpt!r}", remedy)
    if result.protocol is ListenerProtocol.TLS and settings.tls is None:
        remedy = (
            f"-X security.protocol={prefix}SSL, and -X ssl.truststore.location=FILE if the certificate is issued by a "
            "private authority"
        )
        return fail(check, f"{endpoint} requires TLS, which is not configured", remedy)
    if result.protocol is ListenerProtocol.KAFKA and settings.tls is not None:
        remedy = f"-X security.protocol={prefix}PLAINTEXT, or use the port of its TLS listener"
        return fail(check, f"{endpoint} is a Kafka listener without TLS, but TLS is configured", remedy)
    if result.protocol is ListenerProtocol.NO_RESPONSE:
        remedy = "check what listens there: a hanging broker, a proxy without a broker, or another program"
        fact = f"{endpoint} accepts connections but does not respond within {RESPONSE_SECONDS_MAX:g} s"
        return fail(check, fact, remedy)
    return None


def _check_versions(endpoint: Endpoint, response: ApiVersionsResponse) -> Finding:
    check = f"{endpoint} protocol"
    ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    required = [(name, cls.versions, ranges.get(cls.api_key, (0, -1))) for name, cls in _REQUIRED_APIS.items()]
    for name, ours, (low, high) in required:
        if high < ours.first or low > ours.last:
            remedy = f"headrace supports {name} {ours.first} to {ours.last}: use another release of it or of the broker"
            return fail(check, f"the broker supports only {name} {low} to {high}", remedy)
    supported = ", ".join(f"{name} {low} to {high}" for name, _, (low, high) in required)
    if InitProducerIdRequest.api_key not in ranges:
        remedy = "set enable.idempotence=false, or upgrade to Kafka 0.11 or newer"
        return warn(check, f"an old broker, without idempotence and transactions ({supported})", remedy)
    return ok(check, f"Kafka, {len(ranges)} APIs: {supported}")


def _check_tls(endpoint: Endpoint, address: Address, context: ssl.SSLContext) -> Finding:
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
    fact = f"{version}, certificate valid until {end:%Y-%m-%d}"
    days_left = (end - datetime.now(UTC)).days
    if days_left < CERTIFICATE_DAYS_MIN:
        return warn(check, f"{fact} ({days_left} days)", "renew the certificate of the broker")
    return ok(check, fact)


def _check_sasl(endpoint: Endpoint, mechanisms: tuple[str, ...] | None, settings: ClientSettings) -> Finding:
    check = f"{endpoint} sasl"
    kind = "PLAINTEXT" if settings.tls is None else "SSL"
    if mechanisms is None:
        if settings.sasl is None:
            return ok(check, "not enabled")
        remedy = f"-X security.protocol={kind}, or use the port of a SASL listener"
        return fail(check, "SASL is configured, but not enabled on the listener", remedy)
    names, first = ", ".join(mechanisms), mechanisms[0] if mechanisms else "…"
    if settings.sasl is None:
        remedy = f"-X security.protocol=SASL_{kind} -X sasl.mechanism={first} -X sasl.username=… -X sasl.password=…"
        return fail(check, f"the listener requires SASL ({names}), which is not configured", remedy)
    if settings.sasl.name not in mechanisms:
        return fail(check, f"the listener supports {names}, not {settings.sasl.name}", f"-X sasl.mechanism={first}")
    return ok(check, f"{settings.sasl.name} is supported")


# -- the cluster -----------------------------------------------------------------------------------


def _check_metadata(endpoint: Endpoint, settings: ClientSettings) -> Generator[Finding, None, Cluster | None]:
    """Yield findings; return the cluster metadata, as read by a client that connects and authenticates."""
    check = f"{endpoint} cluster"
    limited = replace(
        settings,
        bootstrap_servers=[str(endpoint)],
        timeout_ms=min(settings.timeout_ms, METADATA_MS_MAX),
        request_timeout_ms=min(settings.request_timeout_ms, METADATA_MS_MAX),
    )
    try:
        with BlockingClient(limited) as client:
            cluster = client.cluster((), client.deadline())
    except AuthenticationError as error:
        fact, _, remedy = str(error).partition("; ")
        yield fail(f"{endpoint} login", fact, remedy or "correct sasl.username and sasl.password")
        return None
    except HeadraceError as error:
        yield fail(check, str(error), "check the log of the broker")
        return None
    if settings.sasl is not None:
        yield ok(f"{endpoint} login", f"{settings.sasl.name} succeeded")
    yield ok(check, f"{count_text(len(cluster.brokers), 'broker')}, controller {cluster.controller_id}")
    return cluster


def _check_advertised(cluster: Cluster, via: Endpoint, known: list[Endpoint]) -> Iterator[Finding]:
    """Check the advertised addresses, which clients use for reading and writing."""
    for node_id, endpoint in sorted(cluster.brokers.items()):
        check = f"broker {node_id} advertised as {endpoint}"
        remedy = f"set advertised.listeners of broker {node_id} to an address that this machine can reach"
        if is_loopback(endpoint.host) and not is_loopback(via.host):
            yield fail(check, f"{via} advertises {endpoint}, which is the client's own machine", remedy)
            continue
        if endpoint in known:
            yield ok(check, "same as the bootstrap address")
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
            yield ok(check, f"{address} accepts connections")

"""Requests to a schema registry: HTTP, URLs, credentials, limits and retries.

    RegistrySettings (schema.registry.* options) → RegistryHttp.request → JSON, or a RegistryError

Each request has a connection of its own, because they are few: schemas are cached. All URLs are tried in order before
the back-off. A response is read up to a limit, and within a time; redirects are not followed, so credentials go to the
configured hosts only.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode, urlsplit

from headrace.client import tls
from headrace.client.tls import TlsSettings
from headrace.config import Config
from headrace.config.backoff import exponential_backoff
from headrace.config.registry_options import PREFIX, REGISTRY_OPTIONS, with_prefix
from headrace.errors import (
    ConfigError,
    HeadraceError,
    IncompatibleSchemaError,
    InvalidSchemaError,
    RegistryAuthenticationError,
    RegistryAuthorizationError,
    RegistryError,
    RegistryProtocolError,
    RegistryUnavailableError,
    SchemaDeletedError,
    SchemaNotFoundError,
    SubjectNotFoundError,
    TlsError,
)

if TYPE_CHECKING:
    import socket

log = logging.getLogger("headrace.registry")

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
ACCEPT = f"{CONTENT_TYPE}, application/vnd.schemaregistry+json, application/json"
READ_BYTES = 64 * 1024
SHOWN_CHARS_MAX = 1000
"""Characters of a registry's message in an error."""

# Statuses for which another attempt may help.
RETRIABLE_STATUSES = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)

Json = Any  # What json.loads returns; registry.py checks it.


class RegistryCode(IntEnum):
    """Error codes of Confluent's schema registry that have an error class here."""

    SUBJECT_NOT_FOUND = 40401
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403
    SUBJECT_SOFT_DELETED = 40404
    VERSION_SOFT_DELETED = 40406
    INCOMPATIBLE_SCHEMA = 409
    INVALID_SCHEMA = 42201


_BY_CODE: dict[int, type[RegistryError]] = {
    RegistryCode.SUBJECT_NOT_FOUND: SubjectNotFoundError,
    RegistryCode.VERSION_NOT_FOUND: SchemaNotFoundError,
    RegistryCode.SCHEMA_NOT_FOUND: SchemaNotFoundError,
    RegistryCode.SUBJECT_SOFT_DELETED: SchemaDeletedError,
    RegistryCode.VERSION_SOFT_DELETED: SchemaDeletedError,
    RegistryCode.INCOMPATIBLE_SCHEMA: IncompatibleSchemaError,
    RegistryCode.INVALID_SCHEMA: InvalidSchemaError,
}
_BY_STATUS: dict[int, type[RegistryError]] = {
    HTTPStatus.UNAUTHORIZED: RegistryAuthenticationError,
    HTTPStatus.FORBIDDEN: RegistryAuthorizationError,
    HTTPStatus.CONFLICT: IncompatibleSchemaError,
    **dict.fromkeys(RETRIABLE_STATUSES, RegistryUnavailableError),
}
_REMEDIES: dict[type[RegistryError], str] = {
    RegistryAuthenticationError: f"; check {PREFIX}basic.auth.user.info or {PREFIX}bearer.auth.token",
    RegistryAuthorizationError: "; grant the permission to the user of this client",
}


@dataclass(frozen=True, slots=True)
class RegistryUrl:
    """A URL of the registry, without credentials."""

    text: str
    is_https: bool
    host: str
    port: int | None
    path: str


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The `schema.registry.*` options as typed values. The repr has no secrets."""

    urls: tuple[RegistryUrl, ...]
    authorization: str | None = field(repr=False)
    """The Authorization header."""
    tls: TlsSettings
    request_timeout_ms: int
    retries_max: int
    retry_wait_ms: int
    retry_wait_max_ms: int
    cache_capacity: int
    latest_ttl_ms: float
    response_bytes_max: int

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> RegistrySettings:
        """Return the settings of the options; others are ignored with a warning."""
        config = REGISTRY_OPTIONS.resolve(("argument", with_prefix(options)))
        urls, in_urls = _parse_urls(config.of(tuple, "schema.registry.url"))
        ttl_seconds = config.of(int, "schema.registry.latest.cache.ttl.sec")
        settings = cls(
            urls=urls,
            authorization=_authorization(config, in_urls),
            tls=tls.settings_from(config, PREFIX),
            request_timeout_ms=config.of(int, "schema.registry.request.timeout.ms"),
            retries_max=config.of(int, "schema.registry.max.retries"),
            retry_wait_ms=config.of(int, "schema.registry.retries.wait.ms"),
            retry_wait_max_ms=config.of(int, "schema.registry.retries.max.wait.ms"),
            cache_capacity=config.of(int, "schema.registry.cache.capacity"),
            latest_ttl_ms=float("inf") if ttl_seconds < 0 else ttl_seconds * 1000.0,
            response_bytes_max=config.of(int, "schema.registry.response.max.bytes"),
        )
        config.warn_of_unused(log)
        return settings


def _parse_urls(texts: Sequence[str]) -> tuple[tuple[RegistryUrl, ...], str | None]:
    """Return the URLs, and `user:password` if one of them has it."""
    urls: list[RegistryUrl] = []
    credentials: set[str] = set()
    for position, text in enumerate(texts, 1):
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host or not text.isprintable() or " " in text:
            # Without the text: it may have a password.
            raise ConfigError(
                f"invalid schema.registry.url: expected URLs such as http://localhost:8081, but URL {position} of the "
                f"list is not like that"
            )
        if parts.username is not None:
            credentials.add(f"{unquote(parts.username)}:{unquote(parts.password or '')}")
        address = f"[{host}]" if ":" in host else host
        path = parts.path.rstrip("/")
        shown = f"{parts.scheme}://{address}{'' if port is None else f':{port}'}{path}"
        urls.append(RegistryUrl(shown, parts.scheme == "https", host, port, path))
    if len(credentials) > 1:
        raise ConfigError("the URLs of schema.registry.url have different credentials: expected one user for all")
    return tuple(urls), credentials.pop() if credentials else None


def _authorization(config: Config, in_urls: str | None) -> str | None:
    """Return the Authorization header, if there are credentials."""
    basic, bearer = f"{PREFIX}basic.auth.user.info", f"{PREFIX}bearer.auth.token"
    user_info, token = config.revealed(basic), config.revealed(bearer)
    if config.of(str, f"{PREFIX}basic.auth.credentials.source") == "USER_INFO" and user_info is None:
        raise ConfigError(f"{PREFIX}basic.auth.credentials.source is USER_INFO, but {basic} is not set")
    given = {basic: user_info, bearer: token, "credentials in schema.registry.url": in_urls}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} are both set: unset one of them")
    if token is not None:
        if not token.isascii() or not token.isprintable():  # an error of http.client would show it
            raise ConfigError(f"invalid {bearer}: expected printable ASCII characters")
        return f"Bearer {token}"
    pair = user_info if user_info is not None else in_urls
    if pair is None:
        return None
    if ":" not in pair:
        raise ConfigError(f"invalid {basic}: expected user:password, got a text without a colon")
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


class RegistryHttp:
    """Sends requests to a registry. Threads may share it: it has no state but its settings."""

    def __init__(self, settings: RegistrySettings, sleep: Callable[[float], object] = time.sleep) -> None:
        self._settings = settings
        self._sleep = sleep
        self._rng = random.Random()
        needs_tls = any(url.is_https for url in settings.urls)
        self._tls_context = tls.context(settings.tls) if needs_tls else None

    def request(
        self, method: str, path: str, *, query: Mapping[str, object] | None = None, body: object = None
    ) -> Json:
        """Return the decoded response of the first URL that responds."""
        given = {name: _query_text(value) for name, value in (query or {}).items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        encoded = None if body is None else json.dumps(body).encode()
        failures = 0
        while True:
            problems: list[str] = []
            for url in self._settings.urls:
                try:
                    return self._exchange(url, method, target, encoded)
                except RegistryUnavailableError as error:
                    problems.append(str(error))
                    status, code = error.status, error.code
            failures += 1
            if failures > self._settings.retries_max:
                attempts = "" if failures == 1 else f" ({failures} attempts)"
                raise RegistryUnavailableError(
                    f"schema registry unavailable{attempts}: {'; '.join(problems)}. Check schema.registry.url and the "
                    f"registry's log",
                    status=status,
                    code=code,
                )
            wait_ms = exponential_backoff(
                self._settings.retry_wait_ms, self._settings.retry_wait_max_ms, failures, self._rng
            )
            log.warning("schema registry unavailable, retrying in %.1f s: %s", wait_ms / 1000, "; ".join(problems))
            self._sleep(wait_ms / 1000)

    def _exchange(self, url: RegistryUrl, method: str, target: str, body: bytes | None) -> Json:
        """Send a request to a URL. Raises RegistryUnavailableError if another URL or attempt may help."""
        deadline = time.monotonic() + self._settings.request_timeout_ms / 1000
        connection = self._connection(url, deadline)
        headers = {"Accept": ACCEPT, "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = CONTENT_TYPE
        if self._settings.authorization is not None:
            headers["Authorization"] = self._settings.authorization
        try:
            connection.request(method, url.path + target, body, headers)
            response = connection.getresponse()
            data = self._read(response, url)
        except TimeoutError:
            raise RegistryUnavailableError(
                f"{url.text} did not respond within {self._settings.request_timeout_ms} ms ({PREFIX}request.timeout.ms)"
            ) from None
        except ssl.SSLError as error:
            raise self._tls_error(error, url) from None
        except (OSError, HTTPException, UnicodeError) as error:  # UnicodeError: of a host name
            raise RegistryUnavailableError(f"{url.text}: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()
        return _decoded(response, data, url, f"{method} {target.partition('?')[0]}")

    def _connection(self, url: RegistryUrl, deadline: float) -> HTTPConnection:
        seconds = self._settings.request_timeout_ms / 1000
        connection = (
            HTTPSConnection(url.host, url.port, timeout=seconds, context=self._tls_context)
            if url.is_https
            else HTTPConnection(url.host, url.port, timeout=seconds)
        )
        connection.response_class = _response_class(deadline)
        return connection

    def _read(self, response: HTTPResponse, url: RegistryUrl) -> bytes:
        limit = self._settings.response_bytes_max
        if (response.length or 0) > limit:
            raise _too_large(url, f"{response.length}", limit)
        data = bytearray()
        while chunk := response.read(min(READ_BYTES, limit + 1 - len(data))):
            data += chunk
            if len(data) > limit:
                raise _too_large(url, f"more than {limit}", limit)
        if response.length:
            raise IncompleteRead(bytes(data[:0]), response.length)
        return bytes(data)

    def _tls_error(self, error: ssl.SSLError, url: RegistryUrl) -> HeadraceError:
        if isinstance(error, ssl.SSLCertVerificationError):
            ca = self._settings.tls.ca
            return TlsError(tls.verification_problem(error, url.host, ca, option_prefix=PREFIX))
        return TlsError(
            f"TLS with {url.text} failed: {error.reason or error}; check that it uses TLS on this port, and whether it "
            f"requires a client certificate ({PREFIX}ssl.keystore.location)"
        )


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _too_large(url: RegistryUrl, size: str, limit: int) -> RegistryProtocolError:
    return RegistryProtocolError(
        f"response of {url.text} is too large: {size} bytes, {PREFIX}response.max.bytes is {limit}"
    )


def _decoded(response: HTTPResponse, data: bytes, url: RegistryUrl, what: str) -> Json:
    status = response.status
    if 300 <= status < 400:
        raise RegistryProtocolError(
            f"{url.text} redirects to {response.headers.get('Location', 'another URL')}, which is not followed; set "
            f"schema.registry.url to the URL of the registry itself",
            status=status,
        )
    try:
        content = json.loads(data) if data else None
        is_json = True
    except (ValueError, RecursionError):
        content, is_json = None, False
    if 200 <= status < 300:
        if not is_json:
            raise _not_a_registry(response, data, url)
        return content
    raise _error(response, data, content if isinstance(content, dict) else {}, (url, what))


def _error(
    response: HTTPResponse, data: bytes, content: Mapping[str, Json], where: tuple[RegistryUrl, str]
) -> RegistryError:
    """Return the error of a response."""
    url, what = where
    status = response.status
    code, message = content.get("error_code"), content.get("message")
    code = code if isinstance(code, int) else 0
    cls = _BY_STATUS.get(status) or _BY_CODE.get(code) or RegistryError
    if cls is RegistryError and status == HTTPStatus.NOT_FOUND and not code:
        return _not_a_registry(response, data, url)
    words = str(message)[:SHOWN_CHARS_MAX] if message else response.reason
    return cls(
        f"schema registry {url.text}: {words} (HTTP status {status}, error code {code or 'none'}, {what})"
        f"{_REMEDIES.get(cls, '')}",
        status=status,
        code=code,
    )


def _not_a_registry(response: HTTPResponse, data: bytes, url: RegistryUrl) -> RegistryProtocolError:
    kind = response.headers.get("Content-Type", "no content type")
    start = data[:60].decode(errors="replace")
    return RegistryProtocolError(
        f"{url.text} is not a schema registry: expected JSON of Confluent's API, got {kind} (HTTP status "
        f"{response.status}, {start!r}); check the path of schema.registry.url",
        status=response.status,
    )


# -- a time limit for the whole request ------------------------------------------------------------


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until a deadline: a peer that sends byte by byte would never exceed a socket's time-out."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: float) -> None:
        self._raw = raw  # of `makefile`: keeps the socket open after the connection has closed it
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response_class(deadline: float) -> type[HTTPResponse]:
    class DeadlineResponse(HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock, deadline))

    return DeadlineResponse

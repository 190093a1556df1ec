"""Who may use the registry: users with passwords, and no pages of other sites in a browser.

Host            a registry on a loopback address accepts loopback host names only (against DNS rebinding)
Origin          requests from pages of other sites are refused
Authorization   if there are users: Basic, with the name and password of one of them
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from headrace.broker.registry.http_server import HttpRequest
from headrace.broker.registry.rest_errors import RestError
from headrace.config import Secret

_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    return host in _LOOPBACK_HOSTS or host.startswith("127.")


class AccessCheck:
    """Refuses requests."""

    def __init__(self, users: Mapping[str, Secret], *, only_loopback: bool) -> None:
        self._users = users
        self._only_loopback = only_loopback

    def check(self, request: HttpRequest) -> None:
        """Raise RestError if a request must not be served."""
        host = request.headers.get("host", "")
        if self._only_loopback and not is_loopback(_host_name(host)):
            raise RestError(421, f"Host {host[:100]!r} refused: this registry accepts loopback host names only")
        origin = request.headers.get("origin")
        if origin is not None and _netloc(origin) != host:
            raise RestError(403, "request from a page of another site refused")
        if self._users and not self._is_authenticated(request.headers.get("authorization", "")):
            raise RestError(401, "authentication required: send the name and password of a user (HTTP Basic)")

    def _is_authenticated(self, header: str) -> bool:
        scheme, _, encoded = header.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        # Compared also for an unknown user, so that the time does not tell whether there is one.
        expected = self._users.get(name, Secret("")).reveal()
        return hmac.compare_digest(password.encode(), expected.encode()) and name in self._users


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""

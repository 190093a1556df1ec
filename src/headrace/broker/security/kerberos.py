"""SASL GSSAPI, the server side: Kerberos 5 with the package gssapi (extra `kerberos`), RFC 4752.

    AP-REQ → AP-REP; empty → security layers; "none" → empty, and `user` is set

Users are named by the rules of sasl.kerberos.principal.to.local.rules, which are those of Hadoop's auth_to_local.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.broker.security.tls import from_java_replacement
from headrace.config.kerberos import error_text, load_gssapi
from headrace.errors import AuthenticationError, ConfigError
from headrace.wire.sasl import NO_SECURITY_LAYER, offers_no_security_layer

RULES_OPTION = "sasl.kerberos.principal.to.local.rules"
DEFAULT_RULE = "DEFAULT"
COMPONENTS_MAX = 2

_PRINCIPAL = re.compile(r"(?P<first>[^/@]+)(?:/(?P<second>[^/@]+))?@(?P<realm>[^/@]+)")
_RULE = re.compile(
    r"RULE:\[(?P<components>\d+):(?P<format>[^\]]*)\]"
    r"(?:\((?P<match>(?:\\.|[^\\)])*)\))?"
    r"(?:s/(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<all>g)?)?"
    r"(?:/(?P<case>[LU]))?"
)


class Acceptor:
    """The keys of a listener: creates the server side of exchanges."""

    def __init__(self, keytab: str | None, principal: str | None, rules: Iterable[str]) -> None:
        self.gssapi: Any = load_gssapi()
        if not keytab or not principal:
            raise ConfigError(
                "SASL GSSAPI needs the broker's principal and its keytab: set listener.name.<name>.gssapi."
                'sasl.jaas.config to `… required keyTab="…" principal="kafka/host@REALM";`'
            )
        realm = principal.rpartition("@")[2]
        if "@" not in principal:
            raise ConfigError(f"invalid Kerberos principal {principal!r}: expected name/host@REALM")
        self.user_names = UserNames.parse(rules, realm)
        name = self.gssapi.Name(principal, self.gssapi.NameType.kerberos_principal)
        try:
            self.credentials: Any = self.gssapi.Credentials(name=name, usage="accept", store={"keytab": keytab})
        except self.gssapi.exceptions.GSSError as error:
            raise ConfigError(f"the keytab {keytab} has no usable key of {principal}: {error_text(error)}") from error

    def mechanism(self) -> Gssapi:
        """Return the server side of a new exchange."""
        return Gssapi(self)


class Gssapi:
    """The server side of one SASL exchange with Kerberos."""

    expires_ms: int | None = None

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._context: Any = acceptor.gssapi.SecurityContext(creds=acceptor.credentials, usage="accept")
        self._has_offered = False
        self.user: str | None = None

    async def step(self, token: bytes) -> bytes:
        try:
            if not self._context.complete:
                if not token:
                    raise AuthenticationError("invalid Kerberos ticket (SASL GSSAPI): it is empty")
                # In a thread: the library writes its replay cache to disk.
                response = await asyncio.to_thread(self._context.step, token)
                return response or (self._offer() if self._context.complete else b"")
            if not self._has_offered:
                if token:
                    raise AuthenticationError("expected an empty message after the ticket (SASL GSSAPI)")
                return self._offer()
            choice = self._context.unwrap(token).message
        except self._acceptor.gssapi.exceptions.GSSError as error:
            raise AuthenticationError(
                f"invalid Kerberos ticket or message (SASL GSSAPI): {error_text(error)}"
            ) from None
        if not offers_no_security_layer(choice):
            raise AuthenticationError("security layers are not supported (SASL GSSAPI)")
        principal = str(self._context.initiator_name)
        user = self._acceptor.user_names.of(principal)
        authorization = choice[len(NO_SECURITY_LAYER) :].decode(errors="replace")
        if authorization not in ("", principal, user):
            raise AuthenticationError("the authorization id must equal the user (SASL GSSAPI)")
        self.user = user
        return b""

    def _offer(self) -> bytes:
        self._has_offered = True
        return bytes(self._context.wrap(NO_SECURITY_LAYER, False).message)


@dataclass(frozen=True, slots=True)
class _Rule:
    """`RULE:[n:format](match)s/pattern/replacement/g/L`; without `components` it is DEFAULT."""

    components: int = 0
    format: str = ""
    match: re.Pattern[str] | None = None
    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    replaces_all: bool = False
    case: str = ""

    def apply(self, parts: tuple[str, ...]) -> str | None:
        """Return the user for (realm, first, second …); None if the rule does not match."""
        if self.components != len(parts) - 1:
            return None
        name = re.sub(r"\$(\d)", lambda index: parts[int(index[1])] if int(index[1]) < len(parts) else "", self.format)
        if self.match is not None and not self.match.fullmatch(name):
            return None
        if self.pattern is not None:
            name = self.pattern.sub(self.replacement, name, count=0 if self.replaces_all else 1)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class UserNames:
    """Maps principals to user names."""

    def __init__(self, rules: list[_Rule], realm: str) -> None:
        self._rules = rules
        self._realm = realm

    @classmethod
    def parse(cls, texts: Iterable[str], realm: str) -> UserNames:
        """Parse the rules; `realm` is the broker's, whose principals DEFAULT names by their first part."""
        return cls([_parse(text.strip()) for text in texts], realm)

    def of(self, principal: str) -> str:
        """Return the user of a principal, or raise AuthenticationError."""
        match = _PRINCIPAL.fullmatch(principal)
        if match is not None:
            parts = tuple(part for part in (match["realm"], match["first"], match["second"]) if part is not None)
            for rule in self._rules:
                if rule.components:
                    user = rule.apply(parts)
                else:
                    user = match["first"] if match["realm"] == self._realm else None
                if user is not None and re.search(r"[/@]", user):
                    break  # as in Kafka, which takes this for a mistake in the rule
                if user:
                    return user
        raise AuthenticationError(f"no rule of {RULES_OPTION} names a user for principal {principal}")


def _parse(text: str) -> _Rule:
    if text == DEFAULT_RULE:
        return _Rule()
    match = _RULE.fullmatch(text)
    if match is None or not 0 < int(match["components"]) <= COMPONENTS_MAX:
        raise ConfigError(
            f"invalid {RULES_OPTION} entry {text!r}: expected DEFAULT or "
            "RULE:[n:string](regexp)s/pattern/replacement/g/L"
        )
    try:
        return _Rule(
            int(match["components"]),
            match["format"],
            None if match["match"] is None else re.compile(match["match"]),
            None if match["pattern"] is None else re.compile(match["pattern"]),
            from_java_replacement(match["replacement"] or ""),
            match["all"] is not None,
            match["case"] or "",
        )
    except re.error as error:
        raise ConfigError(f"invalid {RULES_OPTION} entry {text!r}: {error}") from error

"""From the name in a certificate to a user: the name as Java writes it, then ssl.principal.mapping.rules."""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace.broker.security.tls import Certificate
from headrace.errors import ConfigError

# RFC 2253 has short words for these; OpenSSL tells us the long ones.
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL = "1.2.840.113549.1.9.1"
_IA5_STRING = 0x16
_SHORT_LENGTH_MAX = 127

_RULE = re.compile(r"DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)(?=,|$)")


def distinguished_name(certificate: Certificate) -> str:
    """The subject as Java's X500Principal.getName() gives it: the most specific part first, escaped as in RFC 2253."""
    parts = ("+".join(_attribute(name, value) for name, value in rdn) for rdn in reversed(certificate["subject"]))
    return ",".join(parts)


def _attribute(name: str, value: str) -> str:
    if name == "emailAddress":  # RFC 2253 knows no word for it: number, and DER in hexadecimal
        data = value.encode()[:_SHORT_LENGTH_MAX]
        return f"{_EMAIL}=#{bytes([_IA5_STRING, len(data)]).hex()}{data.hex()}"
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    escaped = re.sub(r"^([ #])", r"\\\1", escaped)
    escaped = re.sub(r"(?<=.) $", r"\\ ", escaped)
    return f"{_SHORT.get(name, name)}={escaped}"


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str


class MappingRules:
    """ssl.principal.mapping.rules."""

    def __init__(self, rules: list[_Rule | None]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> MappingRules:
        rules: list[_Rule | None] = []
        rest = text.strip()
        while rest:
            found = _RULE.match(rest)
            if found is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules has {rest!r}; each must be DEFAULT or RULE:pattern/replacement/, "
                    "with L or U behind it for lower or upper case, and commas between them"
                )
            if found[1] is None:
                rules.append(None)
            else:
                rules.append(_Rule(_compiled(found[1]), re.sub(r"\$(\d)", r"\\\1", found[2]), found[3]))
            rest = rest[found.end() :].lstrip(",").lstrip()
        return cls(rules)

    def user(self, certificate: Certificate) -> str:
        """Whom a certificate names."""
        name = distinguished_name(certificate)
        for rule in self._rules:
            if rule is None:
                return name
            match = rule.pattern.fullmatch(name)
            if match is not None:
                user = match.expand(rule.replacement)
                return user.lower() if rule.case == "L" else user.upper() if rule.case == "U" else user
        return name


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"ssl.principal.mapping.rules: {pattern!r} is no pattern: {error}") from error

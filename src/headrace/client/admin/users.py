"""SCRAM credentials of users (KIP-554). Passwords do not leave this process: brokers get them salted and hashed."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.errors import ConfigError
from headrace.wire.api.access import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from headrace.wire.sasl import HASHES, SCRAM_NUMBERS

ITERATIONS_DEFAULT = 4096
_SALT_BYTES = 24
_MECHANISMS = {number: name for name, number in SCRAM_NUMBERS.items()}


class ScramCredentialInfo(NamedTuple):
    mechanism: str
    iterations: int


@dataclass(slots=True, frozen=True)
class SetScramPassword:
    """Create the credential of a user for a mechanism, or replace it."""

    user: str
    mechanism: str
    password: str = field(repr=False)
    iterations: int = ITERATIONS_DEFAULT


@dataclass(slots=True, frozen=True)
class DeleteScramCredential:
    user: str
    mechanism: str


ScramChange = SetScramPassword | DeleteScramCredential


class UserAdmin(Admin):
    """Users that authenticate with SASL SCRAM."""

    def describe_user_scram_credentials(self, users: Iterable[str] = ()) -> dict[str, tuple[ScramCredentialInfo, ...]]:
        """Return the mechanisms that users have credentials for, sorted, by user; of all users without `users`."""
        names = [UserName(name=name) for name in users]
        response = self.client.request(
            DescribeUserScramCredentialsRequest(users=names or None), codes=lambda response: [response.error_code]
        )
        raise_failures([Failure("SCRAM users", response.error_code, response.error_message)])
        raise_failures(Failure(f"user {r.user!r}", r.error_code, r.error_message) for r in response.results)
        described = sorted(response.results, key=lambda result: result.user)
        return {
            result.user: tuple(
                ScramCredentialInfo(_MECHANISMS.get(info.mechanism, "UNKNOWN"), info.iterations)
                for info in sorted(result.credential_infos, key=lambda info: info.mechanism)
            )
            for result in described
        }

    def alter_user_scram_credentials(self, changes: Iterable[ScramChange]) -> None:
        """Create, replace and delete credentials. Several mechanisms of a user are several requests, one after another:
        a request may name a user once."""
        for part in _with_distinct_users(changes):
            request = AlterUserScramCredentialsRequest(
                deletions=[_deletion(change) for change in part if isinstance(change, DeleteScramCredential)],
                upsertions=[_upsertion(change) for change in part if isinstance(change, SetScramPassword)],
            )
            self.change(request, _failures)


def _with_distinct_users(changes: Iterable[ScramChange]) -> list[list[ScramChange]]:
    parts: list[dict[str, ScramChange]] = []
    for change in changes:
        part = next((part for part in parts if change.user not in part), None)
        if part is None:
            parts.append(part := {})
        part[change.user] = change
    return [list(part.values()) for part in parts]


def _deletion(change: DeleteScramCredential) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=change.user, mechanism=_number(change.mechanism))


def _upsertion(change: SetScramPassword) -> ScramCredentialUpsertion:
    number, salt = _number(change.mechanism), secrets.token_bytes(_SALT_BYTES)
    if not change.password:
        raise ConfigError(f"invalid password of user {change.user!r}: it is empty")
    if change.iterations < 1:
        raise ConfigError(f"invalid iterations of user {change.user!r}: expected 4096 or more, got {change.iterations}")
    salted = hashlib.pbkdf2_hmac(HASHES[change.mechanism], change.password.encode(), salt, change.iterations)
    return ScramCredentialUpsertion(
        name=change.user, mechanism=number, iterations=change.iterations, salt=salt, salted_password=salted
    )


def _number(mechanism: str) -> int:
    if mechanism not in SCRAM_NUMBERS:
        raise ConfigError(f"invalid SCRAM mechanism {mechanism!r}: expected one of {', '.join(SCRAM_NUMBERS)}")
    return SCRAM_NUMBERS[mechanism]


def _failures(response: AlterUserScramCredentialsResponse) -> list[Failure]:
    return [Failure(f"user {result.user!r}", result.error_code, result.error_message) for result in response.results]

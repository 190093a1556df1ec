"""SCRAM credentials: what a password was turned into. The password itself is nowhere."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.broker.catalog.journal import Event


@dataclass(frozen=True, slots=True)
class Credential:
    """What RFC 5802 has a server keep. Whoever has it cannot log in with it, but can guess passwords: no repr."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class Users:
    """By user and mechanism (SCRAM-SHA-256, SCRAM-SHA-512)."""

    kinds = ("scram", "scram-deleted")

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Credential]] = {}

    @staticmethod
    def change(user: str, mechanism: str, credential: Credential) -> Event:
        """The event that gives a user a credential, or another one."""
        return {
            "kind": "scram",
            "user": user,
            "mechanism": mechanism,
            "iterations": credential.iterations,
            "salt": _text(credential.salt),
            "stored": _text(credential.stored_key),
            "server": _text(credential.server_key),
        }

    @staticmethod
    def deletion(user: str, mechanism: str) -> Event:
        return {"kind": "scram-deleted", "user": user, "mechanism": mechanism}

    def credential(self, user: str, mechanism: str) -> Credential | None:
        return self.by_name.get(user, {}).get(mechanism)

    def apply(self, event: Event) -> None:
        user, mechanism = event["user"], event["mechanism"]
        if event["kind"] == "scram":
            salt, stored, server = (base64.b64decode(event[name]) for name in ("salt", "stored", "server"))
            self.by_name.setdefault(user, {})[mechanism] = Credential(event["iterations"], salt, stored, server)
            return
        self.by_name[user].pop(mechanism)
        if not self.by_name[user]:
            del self.by_name[user]

    def snapshot(self) -> Iterator[Event]:
        for user, credentials in self.by_name.items():
            for mechanism, credential in credentials.items():
                yield self.change(user, mechanism, credential)

    def changes_to(self, target: Users) -> Iterator[Event]:
        """Events that make this section what `target` is."""
        for user, credentials in self.by_name.items():
            for mechanism in credentials:
                if target.credential(user, mechanism) is None:
                    yield self.deletion(user, mechanism)
        for user, credentials in target.by_name.items():
            for mechanism, credential in credentials.items():
                if self.credential(user, mechanism) != credential:
                    yield self.change(user, mechanism, credential)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

"""A session that knows how its client proves who it is."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.context import Session
from headrace.broker.security.gate import Gate


@dataclass(slots=True)
class SecureSession(Session):
    """A session of a listener with SASL. (A session without is a plain one: there is nothing to keep.)"""

    gate: Gate | None = None


def gate_of(session: Session) -> Gate | None:
    """The gate that a session has to pass; None: it is open to everybody."""
    return session.gate if isinstance(session, SecureSession) else None

"""Requests whose answers tests look into, field by field."""

from __future__ import annotations

from typing import Any

from headrace.wire.schema import Message
from tests.support.peers.connection import Connection


def ask(connection: Connection, request: Message, version: int) -> Any:
    """The answer. Which type it has, the test knows."""
    return connection.call(request, version)

"""Requests whose responses tests inspect field by field."""

from __future__ import annotations

from typing import Any

from headrace.wire.schema import Message
from tests.support.peers.connection import Connection


def ask(connection: Connection, request: Message, version: int) -> Any:
    """Return the response, untyped: the test knows its type."""
    return connection.call(request, version)

"""The registry as a part of the broker: started after it and stopped before it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.broker.registry.access import AccessCheck, is_loopback
from headrace.broker.registry.http_server import HttpServer
from headrace.broker.registry.registry import SchemaRegistry
from headrace.broker.registry.rest import RestApi, error_response
from headrace.broker.registry.schema_log import SchemaLog
from headrace.broker.security.mechanisms import plain_users
from headrace.config import Secret
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker.registry")

LISTENER = "headrace.schema.registry.listener"
USERS = "headrace.schema.registry.users"
PORT_MAX = 65_535


class RegistryService:
    """The registry of a broker, with its HTTP server. Event loop only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry: SchemaRegistry | None = None
        self._server: HttpServer | None = None
        self.url = ""

    async def start(self, listener: str) -> None:
        """Load the schemas and listen on HOST:PORT. Raise ConfigError, or OSError if the port is in use."""
        broker = self._broker
        if not broker.has_partitions or broker.config.optional(str, "headrace.controller") is not None:
            raise ConfigError(
                f"{LISTENER} is for a standalone broker: its schemas are in a topic of this broker; start a broker of "
                "its own for the registry"
            )
        host, port = parse_listener(listener)
        users = broker.config.optional(Secret, USERS)
        access = AccessCheck(
            {} if users is None else plain_users(users.reveal(), USERS), only_loopback=is_loopback(host)
        )
        schema_log = SchemaLog(broker)
        schema_log.start()
        self._registry = SchemaRegistry(schema_log)
        self._server = HttpServer(RestApi(self._registry, access, broker.catalog.identity.cluster_id), error_response)
        self.url = await self._server.listen(host, port, "of the schema registry")
        log.info("schema registry listening on %s", self.url)

    async def stop(self) -> None:
        """Finish running requests, within a time limit, and close."""
        if self._server is not None:
            await self._server.stop()
        if self._registry is not None:
            self._registry.close()


def parse_listener(text: str, option: str = LISTENER) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address without its brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX:
        raise ConfigError(f"invalid {option}: expected HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)

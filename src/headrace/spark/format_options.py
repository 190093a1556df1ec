"""The options of formats and schemas, which the source and the sink share.

options of a query → FormatOptions.parse → settings of keys and values, options of the registry → pickled
                                         → registry()   one client in each process
    executors: when_available    waits for a registry, with a line in the log
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from headrace.config.registry_options import PREFIX, REGISTRY_OPTIONS
from headrace.config.serde_options import ALIASES, SERDE_OPTIONS
from headrace.errors import ConfigError, RegistryUnavailableError

if TYPE_CHECKING:
    from headrace.client.registry import SchemaRegistryClient
    from headrace.client.serde import SerdeSettings
    from headrace.schema.types import RecordField

T = TypeVar("T")

log = logging.getLogger("headrace")

REGISTRIES_MAX = 16
"""Clients of registries in a process; beyond that, all are made anew."""

WAIT_SECONDS = 1.0
"""Between two requests to a registry that is unavailable. The client has retried before."""
FORMAT_NAMES = frozenset((*SERDE_OPTIONS, *ALIASES, *REGISTRY_OPTIONS))
"""All options of this module, in lower case."""

_registries: dict[tuple[object, ...], SchemaRegistryClient] = {}  # Guarded by _lock.
_lock = threading.Lock()


def is_format_option(name: str) -> bool:
    """Whether an option, in lower case, is about formats or the registry."""
    return name in FORMAT_NAMES or name.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The formats of keys and values, and how to reach the registry."""

    settings: Mapping[RecordField, SerdeSettings]
    """Of the columns that have a format."""
    registry_options: Mapping[str, str] = field(repr=False)  # has passwords

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> FormatOptions | None:
        """Check the options, without a registry; None if neither keys nor values have a format."""
        if not given:
            return None  # most queries; the rest imports Arrow
        from headrace.client.serde import SerdeSettings

        key = SerdeSettings.from_options(given, "key", default_reader="latest")
        value = SerdeSettings.from_options(given, "value", default_reader="latest")
        settings = {chosen.field: chosen for chosen in (key, value) if chosen is not None}
        registry = {name: value for name, value in given.items() if name.startswith(PREFIX)}
        if settings:
            options = cls(settings, registry)
            options.registry()
            return options
        for name in (*registry, *given):
            if name not in ("key.format", "value.format"):
                raise ConfigError(
                    f"{name} is set, but value.format and key.format are none; set one of them to avro, protobuf or "
                    "json, or leave it out"
                )
        return None

    def registry(self) -> SchemaRegistryClient:
        """Return the client of this process, with the schemas that it knows."""
        from headrace.client.serde import registry_from

        # A child of a fork has a client of its own: a thread of its parent may have held a lock.
        key = (os.getpid(), *sorted(self.registry_options.items()))
        with _lock:
            if key not in _registries:
                if len(_registries) >= REGISTRIES_MAX:
                    _registries.clear()
                _registries[key] = registry_from(self.registry_options)
            return _registries[key]


def when_available(use_registry: Callable[[], T], timeout_ms: float, what: str) -> T:
    """Call a function that may need an unknown schema. While the registry is unavailable, wait, and say so in the log.

    `what` names what is waited for, and the option with the time.
    """
    started_at = time.monotonic()
    while True:
        try:
            return use_registry()
        except RegistryUnavailableError as error:
            if (time.monotonic() - started_at) * 1000 >= timeout_ms:
                raise RegistryUnavailableError(
                    f"timed out after {timeout_ms:.0f} ms waiting for {what}: {error}"
                ) from error
            log.warning("waiting for the schema registry, which has to give %s: %s", what, error)
            time.sleep(WAIT_SECONDS)

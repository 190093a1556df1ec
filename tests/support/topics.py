"""Topics with unique names, on a broker that tests share."""

from __future__ import annotations

import itertools
import os

from tests.support.peers.broker import Broker

_numbers = itertools.count()


def unique(name: str) -> str:
    """Return a name that no other test uses."""
    return f"{name}-{os.getpid()}-{next(_numbers)}"


def new_topic(broker: Broker, name: str, partitions: int = 1, **configs: object) -> str:
    """Create a topic; `max_message_bytes=1000` sets the option max.message.bytes."""
    options = {option.replace("_", "."): str(value) for option, value in configs.items()}
    return broker.create_topic(unique(name), partitions, options)

"""What quotas may be: of which entities, by which names, with which values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from headrace.broker.catalog.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from headrace.errors import BrokerError, Code

_OF_CLIENTS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_OF_ADDRESSES = (CONNECTION_CREATION_RATE,)
_WHOLE = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)


def check_types(types: Iterable[str]) -> None:
    """Raise unless such entities can be: users and clients, alone or together, or addresses."""
    given = set(types)
    for kind in sorted(given - {USER, CLIENT_ID, IP}):
        raise BrokerError(
            f"there are quotas of {USER}, {CLIENT_ID} and {IP}, not of {kind!r}", code=Code.UNSUPPORTED_VERSION
        )
    if IP in given and len(given) > 1:
        raise BrokerError(f"{IP} stands alone, without {USER} and {CLIENT_ID}", code=Code.INVALID_REQUEST)


def check_value(parts: Mapping[str, str | None], key: str, value: float | None) -> float | None:
    """The value, or INVALID_REQUEST; None takes a quota away."""
    known = _OF_ADDRESSES if IP in parts else _OF_CLIENTS
    if key not in known:
        raise BrokerError(
            f"there is no quota {key!r} of {' and '.join(sorted(parts))}; there are {', '.join(known)}",
            code=Code.INVALID_REQUEST,
        )
    if value is None:
        return None
    if not math.isfinite(value) or value <= 0:
        raise BrokerError(f"{key} is {value}; it must be more than 0", code=Code.INVALID_REQUEST)
    if key in _WHOLE and value != int(value):
        raise BrokerError(f"{key} is {value}; it must be a whole number", code=Code.INVALID_REQUEST)
    return value

"""One module an API key, each with `handle(broker, context, message)`; imported when first asked for.

The table is what ApiVersions advertises. A row must be right: clients do without what is not advertised, but trust what
is. The lowest versions are those that the oldest clients in use speak, the highest are those of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.context import Answer, Context
from headrace.wire.api import APIS

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

Handler = Callable[["Broker", Context, Any], Answer]


class Supported(NamedTuple):
    """The versions of an API that we answer."""

    first: int
    last: int


SUPPORTED: dict[int, Supported] = {
    18: Supported(0, 4),  # ApiVersions
}


@cache
def handler(api_key: int) -> Handler:
    """The function that answers an API key of the table."""
    found: Handler = import_module(f"{__name__}.{APIS[api_key][1]}").handle
    return found

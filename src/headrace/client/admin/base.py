"""The base of the parts of the admin client: a blocking client, and errors that name the resource."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from headrace.client.blocking import BlockingClient, Role
from headrace.errors import BrokerError
from headrace.wire.schema import Message, RequestMessage

R = TypeVar("R", bound=Message)


class Failure(NamedTuple):
    """A part of a request that failed."""

    what: str
    code: int
    message: str | None = None


class Admin:
    """Base class of the parts of the admin client."""

    def __init__(self, client: BlockingClient) -> None:
        self.client = client

    def request_all_brokers(
        self, message: RequestMessage[R] | Callable[[int], RequestMessage[R]], **options: Any
    ) -> list[R]:
        """Return the responses of all brokers."""
        brokers = self.client.cluster((), self.client.deadline(), fresh=True).brokers
        return [self.client.request(message, node_id, **options) for node_id in brokers]

    def change(
        self,
        message: RequestMessage[R] | Callable[[int], RequestMessage[R]],
        failures: Callable[[R], Iterable[Failure]],
        **options: Any,
    ) -> R:
        """Send a request to the controller; raises if any part of it failed."""
        response = self.client.request(
            message, Role.CONTROLLER, codes=lambda response: [f.code for f in failures(response)], **options
        )
        raise_failures(failures(response))
        return response


def raise_failures(failures: Iterable[Failure]) -> None:
    """Raise the first failure, with the names of the others."""
    failed = [failure for failure in failures if failure.code]
    if not failed:
        return
    what, code, message = failed[0]
    others = f"; also failed: {', '.join(failure.what for failure in failed[1:])}" if failed[1:] else ""
    raise BrokerError(f"{what}{f': {message}' if message else ''}{others}", code=code)

"""Replication of the catalog: the controller's feed of changes, and the copy of a follower.

    CatalogFetch (generation, number) ─► CatalogFeed: the next changes, or a snapshot if the number is unknown
                                           ├► changes  ─► Catalog.apply_changes
                                           └► snapshot ─► Catalog.load_snapshot

A follower has one request at a time, which waits at the controller for the next change. It rejects a snapshot that
lacks changes of its copy (StaleCatalogError), because the controller was started with an older or damaged catalog; it
keeps its copy, reports the problem and retries.

Until a follower has registered, its copy says that it leads nothing: the controller may not know yet that it was
restarted or has lost data, and its leaderships continue in a new epoch.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable

from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.history import StaleCatalogError
from headrace.broker.catalog.topics import Topics
from headrace.broker.cluster.peer import Peer, RefusedError
from headrace.broker.tasks import start_loop
from headrace.errors import BrokerError, ClosedError, ConfigError, ConnectionFailedError
from headrace.wire.api.inter_broker import CatalogFetchRequest, CatalogFetchResponse

log = logging.getLogger("headrace.broker")

WAIT_MS_MAX = 10_000
"""How long the controller lets a request wait for a change."""
WAIT_MS = 2_000
"""How long the controller may wait for changes before it responds to a follower."""
RESPONSE_MS_MAX = 3 * WAIT_MS
RETRY_MS = 50.0
REJECTED_MS = 2_000.0
"""The wait after an error that is likely to persist."""
_NO_GENERATION = -1


class CatalogFeed:
    """Handles CatalogFetch on the controller. Event loop only."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._next_numbers: dict[int, int] = {}  # by node id: the next change it fetches, so it has all before
        self._changed = asyncio.Event()
        self._fetched = asyncio.Event()
        catalog.listeners.append(self._on_event)

    async def fetch(self, message: CatalogFetchRequest) -> CatalogFetchResponse:
        """Return the changes from a number on, as soon as there are any; a snapshot if the number is unknown."""
        recent = self._catalog.recent
        if message.generation == recent.generation:
            self._next_numbers[message.broker_id] = message.next_number
            self._fetched.set()
            self._fetched = asyncio.Event()
            if message.next_number == recent.next_number:
                await _wait(self._changed, min(message.max_wait_ms, WAIT_MS_MAX))
        return fetch_now(self._catalog, message)

    async def wait_replicated(self, nodes: Callable[[], Iterable[int]], number: int, timeout_ms: float) -> bool:
        """Wait until all `nodes`, evaluated each time, have the changes before `number`; return whether they do."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while not all(self._next_numbers.get(node, -1) >= number for node in nodes()):
            left_ms = (deadline - loop.time()) * 1000
            if left_ms <= 0:
                return False
            await _wait(self._fetched, left_ms)
        return True

    def forget(self, node_id: int) -> None:
        self._next_numbers.pop(node_id, None)

    def _on_event(self, event: Event) -> None:
        if not self._changed.is_set():
            self._changed.set()
            self._changed = asyncio.Event()


def fetch_now(catalog: Catalog, message: CatalogFetchRequest) -> CatalogFetchResponse:
    """Return the response to a CatalogFetch without waiting."""
    recent = catalog.recent
    changes = recent.since(message.generation, message.next_number)
    is_snapshot = changes is None
    if changes is None:
        next_number, changes = recent.next_number, [list(catalog.snapshot())]
    else:
        next_number = message.next_number + len(changes)
    return CatalogFetchResponse(
        controller_id=catalog.brokers.controller_id,
        generation=recent.generation,
        next_number=next_number,
        is_snapshot=is_snapshot,
        changes=[json.dumps(list(change), separators=(",", ":")).encode() for change in changes],
    )


async def _wait(event: asyncio.Event, timeout_ms: float) -> None:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass


class CatalogReplica:
    """Keeps the copy of a follower up to date. Event loop only."""

    def __init__(self, catalog: Catalog, peer: Peer, node_id: int, redirect: Callable[[str], None]) -> None:
        """`redirect` is called with the controller's address if the peer is not the controller."""
        self._redirect = redirect
        self._catalog = catalog
        self._peer = peer
        self._node_id = node_id
        self._generation = _NO_GENERATION
        self._next_number = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_registered = False
        self.problem: str | None = None
        """Why the controller's catalog is rejected; None if it is not."""
        self.controller_id = catalog.brokers.controller_id

    @property
    def next_number(self) -> int:
        """The number of the next change; -1 if the copy is not up to date with the controller's generation."""
        return self._next_number if self._generation != _NO_GENERATION else -1

    async def catch_up(self, timeout_ms: float) -> None:
        """Fetch the whole catalog once.

        Raises ConnectionFailedError at the timeout, ConfigError if it is another cluster, StaleCatalogError if the
        controller's catalog lacks changes of this copy, and RefusedError at once if the authentication fails.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            try:
                self._apply(await self._fetch(0))
                return
            except RefusedError:
                raise
            except StaleCatalogError as error:
                self._reject(error)
                raise
            except ConnectionFailedError:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_MS / 1000)

    async def verify(self) -> None:
        """Check, before registering, that the controller has all changes of this copy.

        Raises StaleCatalogError if not, ConfigError if it is another cluster, ConnectionFailedError, BrokerError.
        """
        response = await self._fetch(0)
        if response.is_snapshot:
            try:
                events = _events(response)
                self._check_cluster(events)
                self._catalog.check_snapshot(events, response.next_number)
            except (StaleCatalogError, ConfigError) as error:
                self._reject(error)
                raise

    def start(self) -> None:
        """Replicate the catalog, beginning with a snapshot: this run of the broker has registered."""
        self._is_registered = True
        self._generation = _NO_GENERATION
        if self._task is None:
            self._task = start_loop(self._run, "catalog link")
        else:
            self._peer.disconnect("this broker has registered again")  # a pending response may be outdated

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._peer.close()

    async def wait_for(self, generation: int, number: int, timeout_ms: float) -> None:
        """Wait, within a limit, until the changes before `number` are applied here."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while generation == self._generation and self._next_number < number:
                    await self._changed.wait()
        except TimeoutError:
            log.warning("timed out after %g ms waiting for change %d of the controller", timeout_ms, number)

    async def _run(self) -> None:
        while True:
            pause_ms = RETRY_MS
            try:
                self._apply(await self._fetch(WAIT_MS))
                continue
            except ClosedError:
                return
            except ConnectionFailedError as error:
                log.debug("failed to fetch the catalog: %s", error)
            except (StaleCatalogError, ConfigError) as error:
                self._reject(error)
                pause_ms = REJECTED_MS
            except BrokerError as error:
                log.warning("failed to fetch the catalog: %s", error)
                pause_ms = REJECTED_MS
            except Exception:  # any error: without retries this broker would stay behind forever
                log.exception("failed to apply a change of the catalog; fetching a snapshot")
                self._generation = _NO_GENERATION
                pause_ms = REJECTED_MS
            await asyncio.sleep(pause_ms / 1000)

    async def _fetch(self, wait_ms: int) -> CatalogFetchResponse:
        request = CatalogFetchRequest(
            broker_id=self._node_id,
            generation=self._generation,
            next_number=self._next_number,
            max_wait_ms=wait_ms,
        )
        response = await self._peer.request(request, 0, RESPONSE_MS_MAX)
        if response.controller:
            self._redirect(response.controller)
            self._peer.disconnect("it is not the controller")
            raise ConnectionFailedError(response.error_message or "it is not the controller")
        if response.error_code:
            raise BrokerError(response.error_message or "CatalogFetch failed", code=response.error_code)
        return response

    def _apply(self, response: CatalogFetchResponse) -> None:
        events = _events(response)
        if response.is_snapshot:
            self._check_cluster(events)
            self._catalog.load_snapshot(events, response.next_number)
        elif events:
            self._catalog.apply_changes(events, response.next_number)
        if not self._is_registered:
            self._catalog.overlay(
                [Topics.not_led_by(self._node_id, event) for event in self._catalog.topics.snapshot()]
            )
        self.problem = None
        self._generation, self._next_number = response.generation, response.next_number
        self.controller_id = response.controller_id
        self._changed.set()
        self._changed = asyncio.Event()

    def _reject(self, error: StaleCatalogError | ConfigError) -> None:
        text = str(error.args[0])
        if text != self.problem:  # once: it is retried
            log.error("the controller's catalog is rejected: %s", text)
        self.problem = text

    def _check_cluster(self, events: list[Event]) -> None:
        ours = self._catalog.identity.cluster_id
        theirs = next((event["id"] for event in events if event["kind"] == "cluster"), "")
        if ours not in ("", theirs):
            raise ConfigError(
                f"the data of this broker belong to cluster {ours}, but headrace.controller is of cluster {theirs}: "
                "correct headrace.controller, or use an empty data folder. If the controller has lost its data "
                "folder, restore the catalog from this broker: headrace broker repair --data-dir CONTROLLER_FOLDER "
                "--from FOLDER_OF_ANOTHER_BROKER",
            )


def _events(response: CatalogFetchResponse) -> list[Event]:
    return [event for change in response.changes for event in json.loads(change)]

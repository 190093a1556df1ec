"""A copy of the controller's catalog, kept up to date: one question at a time that waits for the next change.

    CatalogFetch (generation, number) ─► changes ─► Catalog.follow     from where we are
                                      └► snapshot ─► Catalog.load_snapshot    if it was restarted, or we are late

A snapshot that lacks changes which our copy has is refused (StaleCatalogError): the controller was started with an
older or a damaged catalog. We keep our copy, say so, and ask again.

Until this broker has registered, the copy says that it leads nothing: the controller may not know yet that it was
restarted, nor what it has lost, and what it led goes on in a new epoch.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.epochs import StaleCatalogError
from headrace.broker.catalog.topics import Topics
from headrace.broker.cluster.link import Peer, RefusedError
from headrace.broker.tasks import start_loop
from headrace.errors import BrokerError, ClosedError, ConfigError, ConnectionFailedError
from headrace.wire.api.inter_broker import CatalogFetchRequest, CatalogFetchResponse

log = logging.getLogger("headrace.broker")

WAIT_MS = 2_000
ANSWER_MS_MAX = 3 * WAIT_MS
RETRY_MS = 50.0
REFUSED_MS = 2_000.0
"""The wait after an answer that will hardly be another one soon."""
_NO_GENERATION = -1


class CatalogLink:
    """Follows the controller. Event loop only."""

    def __init__(self, catalog: Catalog, peer: Peer, node_id: int, redirect: Callable[[str], None]) -> None:
        """`redirect` is told the controller's address by a broker that was asked and is not the controller."""
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
        """Why the controller's catalog is not followed; None: it is, as far as is known."""
        self.controller_id = catalog.brokers.controller_id

    @property
    def next_number(self) -> int:
        """Everything before it is known here; -1: nothing of what the controller has now."""
        return self._next_number if self._generation != _NO_GENERATION else -1

    async def catch_up(self, timeout_ms: float) -> None:
        """Ask once, for all of it. ConnectionFailedError if nobody answers, ConfigError if it is another cluster.

        RefusedError, at once, if we are not who we say: that will not get better. StaleCatalogError if the controller's
        catalog lacks changes that ours has.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            try:
                self._take(await self._fetch(0))
                return
            except RefusedError:
                raise
            except StaleCatalogError as error:
                self._refuse(error)
                raise
            except ConnectionFailedError:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_MS / 1000)

    async def verify(self) -> None:
        """Ask, before we register, whether the controller has what our copy has.

        StaleCatalogError if it has not, ConfigError if it is another cluster's, ConnectionFailedError, BrokerError.
        """
        response = await self._fetch(0)
        if response.is_snapshot:
            try:
                events = _events(response)
                self._check_cluster(events)
                self._catalog.check_snapshot(events, response.next_number)
            except (StaleCatalogError, ConfigError) as error:
                self._refuse(error)
                raise

    def follow(self) -> None:
        """The controller knows of this run of the broker: take over what it says from now on, first all of it."""
        self._is_registered = True
        self._generation = _NO_GENERATION
        if self._task is None:
            self._task = start_loop(self._follow, "catalog link")
        else:
            self._peer.disconnect("this broker has registered again")  # an answer may be on its way from before

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._peer.close()

    async def reached(self, generation: int, number: int, timeout_ms: float) -> None:
        """Wait, within bounds, until what was recorded before `number` is known here."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while generation == self._generation and self._next_number < number:
                    await self._changed.wait()
        except TimeoutError:
            log.warning("the controller's change %d is not known here after %g ms", number, timeout_ms)

    async def _follow(self) -> None:
        while True:
            pause_ms = RETRY_MS
            try:
                self._take(await self._fetch(WAIT_MS))
                continue
            except ClosedError:
                return
            except ConnectionFailedError as error:
                log.debug("the catalog cannot be followed: %s", error)
            except (StaleCatalogError, ConfigError) as error:
                self._refuse(error)
                pause_ms = REFUSED_MS
            except BrokerError as error:
                log.warning("the catalog cannot be followed: %s", error)
                pause_ms = REFUSED_MS
            except Exception:  # whatever it is, to stop following would leave this broker behind for ever
                log.exception("a change of the catalog could not be taken over; asking for all of it")
                self._generation = _NO_GENERATION
                pause_ms = REFUSED_MS
            await asyncio.sleep(pause_ms / 1000)

    async def _fetch(self, wait_ms: int) -> CatalogFetchResponse:
        request = CatalogFetchRequest(
            broker_id=self._node_id,
            generation=self._generation,
            next_number=self._next_number,
            max_wait_ms=wait_ms,
        )
        response = await self._peer.ask(request, 0, ANSWER_MS_MAX)
        assert isinstance(response, CatalogFetchResponse)
        if response.controller:
            self._redirect(response.controller)
            self._peer.disconnect("it is not the controller")
            raise ConnectionFailedError(response.error_message or "it is not the controller")
        if response.error_code:
            raise BrokerError(response.error_message or "the catalog is refused", code=response.error_code)
        return response

    def _take(self, response: CatalogFetchResponse) -> None:
        events = _events(response)
        if response.is_snapshot:
            self._check_cluster(events)
            self._catalog.load_snapshot(events, response.next_number)
        elif events:
            self._catalog.follow(events, response.next_number)
        if not self._is_registered:
            self._catalog.assume([Topics.not_led_by(self._node_id, event) for event in self._catalog.topics.snapshot()])
        self.problem = None
        self._generation, self._next_number = response.generation, response.next_number
        self.controller_id = response.controller_id
        self._changed.set()
        self._changed = asyncio.Event()

    def _refuse(self, error: StaleCatalogError | ConfigError) -> None:
        text = str(error.args[0])
        if text != self.problem:  # once: it is asked for again and again
            log.error("the controller's catalog is refused: %s", text)
        self.problem = text

    def _check_cluster(self, events: list[Event]) -> None:
        ours = self._catalog.identity.cluster_id
        theirs = next((event["id"] for event in events if event["kind"] == "cluster"), "")
        if ours not in ("", theirs):
            raise ConfigError(
                f"this broker's data are of the cluster {ours}, but headrace.controller leads to the cluster {theirs}: "
                "name the right controller, or give this broker an empty data folder. If the controller has lost its "
                "data folder, give it a copy of this broker's catalog: headrace broker repair --data-dir "
                "CONTROLLER_FOLDER --from FOLDER_OF_ANOTHER_BROKER",
            )


def _events(response: CatalogFetchResponse) -> list[Event]:
    return [event for change in response.changes for event in json.loads(change)]

"""A connection to another broker: order, timeouts, errors and reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.broker.catalog.cluster import BrokerRegistration, Brokers
from headrace.broker.cluster.peer import Peer, Peers
from headrace.errors import ClosedError, ConnectionFailedError
from headrace.wire.api.groups import HeartbeatRequest, HeartbeatResponse
from headrace.wire.frames import decode_request_body, decode_request_header, encode_response
from tests.support.group_rig import on_loop

VERSION = 4
SECONDS_MAX = 10.0


def response(correlation_id: int, code: int) -> bytes:
    return b"".join(encode_response(HeartbeatResponse(error_code=code), VERSION, correlation_id))


class Other:
    """The other broker: responds to a heartbeat with the number in the group's name."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[str] = []
        self.held = asyncio.Event()  # responses wait for it
        self.held.set()
        self.spoil: Callable[[bytes], bytes | None] = lambda data: data
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                header, pos = decode_request_header(frame)
                request = decode_request_body(header, frame, pos)
                assert isinstance(request, HeartbeatRequest)
                self.requests.append(request.group_id)
                await self.held.wait()
                data = self.spoil(response(header.correlation_id, int(request.group_id)))
                if data is None:
                    writer.transport.abort()
                    return
                writer.write(data)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Other, Peer]]:
    other = Other()
    await other.start()
    peer = Peer(lambda: ("127.0.0.1", other.port), client_id="test")
    try:
        async with asyncio.timeout(SECONDS_MAX):
            yield other, peer
    finally:
        await peer.close()
        await other.stop()


async def send_heartbeat(peer: Peer, number: int, timeout_ms: float = 5_000) -> int:
    response = await peer.request(HeartbeatRequest(group_id=str(number)), VERSION, timeout_ms)
    assert isinstance(response, HeartbeatResponse)
    return response.error_code


@on_loop
async def test_requests_are_pipelined_on_one_connection() -> None:
    async with linked() as (other, peer):
        assert not peer.is_connected
        assert await asyncio.gather(*(send_heartbeat(peer, number) for number in range(50))) == list(range(50))
        assert other.connections == 1
        assert other.requests == [str(number) for number in range(50)]
        assert peer.is_connected


@on_loop
async def test_a_cancelled_request_does_not_affect_the_responses_of_others() -> None:
    async with linked() as (other, peer):
        other.held.clear()
        first, second = asyncio.create_task(send_heartbeat(peer, 1)), asyncio.create_task(send_heartbeat(peer, 2))
        while not other.requests:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.sleep(0)
        other.held.set()
        assert await second == 2
        assert other.connections == 1


@on_loop
async def test_a_timeout_closes_the_connection_and_the_next_request_reconnects() -> None:
    async with linked() as (other, peer):
        other.held.clear()
        behind = asyncio.create_task(send_heartbeat(peer, 2))
        with pytest.raises(ConnectionFailedError, match=r"timed out after 50 ms waiting for .* Heartbeat"):
            await send_heartbeat(peer, 1, timeout_ms=50)
        with pytest.raises(ConnectionFailedError, match="broke before the response to Heartbeat"):
            await behind
        other.held.set()
        assert await send_heartbeat(peer, 3) == 3
        assert other.connections == 2


@on_loop
@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: None,
        lambda data: data[:4] + b"\x00\x00\xff\xff" + data[8:],
        lambda data: b"\xff" * 8,
        lambda data: data + data,
        lambda data: data[:3] + bytes([data[3] - 1]) + data[4:-1],
    ],
    ids=["hangs up", "another correlation id", "no frame", "an additional response", "torn"],
)
async def test_an_invalid_response_closes_the_connection(
    spoil: Callable[[bytes], bytes | None],
) -> None:
    async with linked() as (other, peer):
        other.spoil = spoil
        with suppress(ConnectionFailedError):  # an extra response closes the connection without a request
            await send_heartbeat(peer, 1, timeout_ms=200)
        while peer.is_connected:
            await asyncio.sleep(0.001)
        other.spoil = lambda data: data
        assert await send_heartbeat(peer, 7) == 7


@on_loop
async def test_a_restarted_broker_is_reached_at_its_new_address() -> None:
    async with linked() as (other, peer):
        assert await send_heartbeat(peer, 1) == 1
        await other.stop()
        with pytest.raises(ConnectionFailedError):
            await send_heartbeat(peer, 2)
        with pytest.raises(ConnectionFailedError, match="cannot connect to the broker at"):
            await send_heartbeat(peer, 2)
        other.port = 0
        await other.start()
        assert await send_heartbeat(peer, 3) == 3


@on_loop
async def test_close_fails_pending_requests() -> None:
    async with linked() as (other, peer):
        other.held.clear()
        waiting = asyncio.create_task(send_heartbeat(peer, 1))
        while not other.requests:
            await asyncio.sleep(0.001)
        await peer.close()
        with pytest.raises(ConnectionFailedError, match="it was closed"):
            await waiting
        with pytest.raises(ClosedError):
            await send_heartbeat(peer, 2)
        other.held.set()


@on_loop
async def test_peers_have_one_connection_for_each_broker_and_purpose() -> None:
    other = Other()
    await other.start()
    brokers = Brokers()
    peers = Peers(brokers, "INSIDE", client_id="broker-1")
    try:
        with pytest.raises(ConnectionFailedError, match="broker 2 has no address for listener INSIDE"):
            await send_heartbeat(peers.to(2, "fetch"), 1)
        row = BrokerRegistration(2, "", 1, {"INSIDE": ("127.0.0.1", other.port)}, None, fenced=False, stopping=False)
        brokers.apply(Brokers.change(row, 1))
        assert peers.to(2, "fetch") is peers.to(2, "fetch")
        both = await asyncio.gather(send_heartbeat(peers.to(2, "fetch"), 1), send_heartbeat(peers.to(2, "markers"), 2))
        assert list(both) == [1, 2]
        assert other.connections == 2
    finally:
        await peers.close()
        await other.stop()

"""One connection: it serves requests one at a time and sends the responses in that order.

    socket → shared chunk → FrameReader → queue ─► dispatch ─► buffers ─► socket
                │                          │          │            │
                │                          │          │            └ not read by the peer: dispatching stops
                │                          │          └ a delayed response: dispatching stops until it is sent
                └ reading is paused ◄──────┘ too long

The responses to a burst of requests are written with one system call. An idle connection owns no buffer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from headrace.broker.context import Session
from headrace.broker.security.sasl import sasl_of
from headrace.broker.server.sender import ResponseSender, SocketSender, TlsSender
from headrace.broker.tasks import start_task
from headrace.errors import MalformedError
from headrace.wire.frames import FRAME_BYTES_MAX
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.broker.security.sasl import SaslAuthentication
    from headrace.broker.server.dispatch import DelayedResponse
    from headrace.broker.server.listener import Listener
    from headrace.broker.server.server import Server

log = logging.getLogger("headrace.broker")

QUEUED_REQUESTS_MAX = 64
"""Reading stops when more requests are queued; one more read may exceed it."""
QUEUED_BYTES_MAX = 4 * 1024 * 1024
TURN_REQUESTS_MAX = 64
"""How many requests of a connection are served before the event loop runs others."""
GATHER_BYTES_MAX = 1024 * 1024
"""Responses of a burst are sent at its end, or when they exceed this."""
UNSENT_BYTES_MAX = 1024 * 1024
"""While more is unsent, no request of the connection is served until the peer has read everything."""
LINGER_SECONDS_MAX = 10.0
"""How long closing waits for the peer to read the last responses."""


class ServerConnection(asyncio.BufferedProtocol):
    """The server's end of a connection."""

    __slots__ = (
        "_closing",
        "_frames",
        "_held_bytes",
        "_lost",
        "_muted",
        "_out",
        "_out_bytes",
        "_queue",
        "_queued_bytes",
        "_reader",
        "_reading",
        "_scheduled",
        "_sender",
        "_server",
        "_stopped",
        "_task",
        "_unsent_bytes",
        "last_active",
        "listener",
        "sasl",
        "session",
        "transport",
    )

    def __init__(self, server: Server, listener: Listener) -> None:
        self._server = server
        self.listener = listener
        self.session: Session = server.authenticator.session(listener)
        self.sasl = sasl_of(self.session)  # None: the listener has no SASL
        self.transport: asyncio.Transport | None = None
        self.last_active = server.loop.time()
        self._reader = FrameReader(server.frame_bytes_max, server.chunk)
        self._frames: list[Buffer] = []
        self._held_bytes = 0  # by an incomplete frame, as counted by the server
        self._queue: deque[Buffer] = deque()
        self._queued_bytes = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._task: asyncio.Task[list[Buffer] | None] | None = None  # of the delayed response
        self._sender: ResponseSender | None = None
        self._unsent_bytes = 0  # as counted by the server
        self._reading = True
        self._closing: asyncio.TimerHandle | None = None  # the time limit of closing
        self._muted = False  # throttled
        self._stopped = False  # no more requests are read
        self._lost = False  # the peer has disconnected; received requests are still served
        self._scheduled = False  # the rest of the queue continues in the next turn

    # -- asyncio protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.session.host, self.session.port = peer[:2] if peer else ("", 0)
        if self.listener.tls is None:
            self._sender = SocketSender(transport, self._server.loop, self._drained)
        else:
            self._sender = TlsSender(transport, self._drained)
            self._server.authenticator.identify(self.session, transport.get_extra_info("peercert"))
        if self.sasl is not None:
            self._update_authentication(self.sasl)
        self._server.connected(self)

    def connection_lost(self, error: Exception | None) -> None:
        assert self._sender is not None
        self._sender.close()
        self._out.clear()
        self._drop_frame()  # at once: this object may live until the next garbage collection
        self._count_unsent()
        if self._closing is not None:
            self._closing.cancel()
        if self._task is not None:
            self._server.abandon(self._task)
        self._server.disconnected(self)
        self._lost = True
        self._serve()  # with acks=0 a peer may disconnect right after its last request

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, count: int) -> None:
        self.last_active = self._server.loop.time()
        if self._stopped:
            return
        frames = self._frames
        try:
            self._reader.received(count, frames)
        except MalformedError as error:
            self.close(str(error))
            return
        if self._reader.held_bytes != self._held_bytes:
            self._count_held()
        if not frames:
            return
        self._queue.extend(frames)
        size = sum(map(len, frames))
        self._queued_bytes += size
        self._server.queued_requests += len(frames)
        self._server.queued_bytes += size
        self._server.requests += len(frames)
        self._server.received_bytes += size
        frames.clear()
        self._serve()

    def eof_received(self) -> bool:
        return False  # close: no responses after EOF

    def pause_writing(self) -> None:
        assert isinstance(self._sender, TlsSender)
        self._sender.paused()

    def resume_writing(self) -> None:
        assert isinstance(self._sender, TlsSender)
        self._sender.resumed()

    # -- requests --------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether the peer waits for a response, so that the connection is not idle."""
        return self._task is not None or self._muted

    @property
    def _is_stuck(self) -> bool:
        """Whether the peer does not read its responses."""
        return self._unsent_bytes > UNSENT_BYTES_MAX

    def _serve(self) -> None:
        """Serve queued requests until one has to wait."""
        queue, dispatch = self._queue, self._server.dispatch
        turns = TURN_REQUESTS_MAX
        while queue and self._task is None and not (self._is_stuck or self._muted or self._scheduled):
            if not turns:
                self._scheduled = True
                self._server.loop.call_soon(self._continue)
                break
            turns -= 1
            frame = queue.popleft()
            self._queued_bytes -= len(frame)
            self._server.queued_bytes -= len(frame)
            self._server.queued_requests -= 1
            try:
                response = dispatch(self, frame)
            except Exception:  # the peer must not wait forever
                log.exception("internal error while handling a request of %s; please report it", self.session.host)
                self.close("internal error while handling the request")
                return
            if response is None:
                continue
            if isinstance(response, list):
                self._respond(response)
            else:
                self._wait_for(response)
        if self._out:
            self._flush()
        self._adjust_reading()

    def _continue(self) -> None:
        self._scheduled = False
        self._serve()

    def _wait_for(self, delayed: DelayedResponse) -> None:
        self._task = start_task(delayed.response, "request")
        self._server.track(self._task, abandonable=delayed.abandonable)
        self._task.add_done_callback(self._on_response)
        if self._lost:
            self._server.abandon(self._task)

    def _on_response(self, task: asyncio.Task[list[Buffer] | None]) -> None:
        self._task = None
        if task.cancelled():
            if not self._lost:
                self.close("")
                return
        elif task.exception() is not None:  # logged and counted by start_task
            self.close("internal error while handling the request")
            return
        elif (response := task.result()) is not None:
            self._respond(response)
        self._serve()

    # -- throttling, closing ---------------------------------------------------------------------

    def mute(self, throttle_ms: float) -> None:
        """Stop serving requests for `throttle_ms`."""
        if not self._muted and throttle_ms > 0:
            self._muted = True
            self._server.loop.call_later(throttle_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._muted = False
        self._serve()

    def _update_authentication(self, sasl: SaslAuthentication) -> None:
        """After a response: close if the authentication has failed, and adjust the frame limit."""
        if sasl.failed:
            self.close("authentication failed")
        self._reader.frame_bytes_max = min(sasl.frame_bytes_max or FRAME_BYTES_MAX, self._server.frame_bytes_max)

    def stop_reading(self) -> None:
        """Read no more requests, and drop the queued ones."""
        self._drop_queue()
        self._drop_frame()
        self._stopped = True
        self._adjust_reading()

    @property
    def held_bytes(self) -> int:
        """The memory of an incomplete frame."""
        return self._held_bytes

    def _count_held(self) -> None:
        held_bytes = self._reader.held_bytes
        self._server.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes
        if self._server.held_bytes > self._server.held_bytes_max:
            self._server.close_stalest_incomplete()

    def _drop_frame(self) -> None:
        self._reader.drop()
        self._count_held()

    def _drop_queue(self) -> None:
        self._server.queued_requests -= len(self._queue)
        self._server.queued_bytes -= self._queued_bytes
        self._queued_bytes = 0
        self._queue.clear()

    def close(self, reason: str) -> None:
        """Close after sending pending responses; log a non-empty reason."""
        if reason:
            log.info("closing connection from %s to %s: %s", self.session.host, self.listener.name, reason)
        self.stop_reading()
        if self._out:
            self._flush()
        if self.transport is None or self.transport.is_closing() or self._closing is not None:
            return
        self._closing = self._server.loop.call_later(LINGER_SECONDS_MAX, self.transport.abort)
        if not self._unsent_bytes:
            self.transport.close()

    # -- sending, back-pressure ------------------------------------------------------------------

    def _respond(self, buffers: list[Buffer]) -> None:
        self._out += buffers
        for buffer in buffers:
            self._out_bytes += len(buffer)
        if self.sasl is not None:
            self._update_authentication(self.sasl)
        if self._out_bytes >= GATHER_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        """Send the collected responses."""
        buffers, self._out, size, self._out_bytes = self._out, [], self._out_bytes, 0
        if self.transport is not None and self._sender is not None and not self.transport.is_closing():
            self._sender.send(buffers, size)
            self._server.sent_bytes += size
            self._count_unsent()

    def _drained(self) -> None:
        """Continue after the peer has read everything."""
        self._count_unsent()
        if self._closing is not None and self.transport is not None:
            self.transport.close()
        self._serve()

    def _count_unsent(self) -> None:
        assert self._sender is not None
        self._server.unsent_bytes += self._sender.unsent_bytes - self._unsent_bytes
        self._unsent_bytes = self._sender.unsent_bytes

    def _adjust_reading(self) -> None:
        """Pause or resume reading, depending on the queue."""
        queued = len(self._queue)
        full = queued > QUEUED_REQUESTS_MAX or self._queued_bytes > QUEUED_BYTES_MAX
        should_read = not (self._stopped or full or (queued and self._server.is_full))
        if should_read != self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = should_read
            if should_read:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

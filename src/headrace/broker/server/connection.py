"""One connection: what is received becomes requests, one at a time, and their answers go out in that order.

    socket → shared chunk → FrameReader → queue ─► dispatch ─► buffers ─► socket
                │                          │          │            │
                │                          │          │            └ not taken by the peer: nothing is dispatched
                │                          │          └ an answer that comes later: nothing is dispatched before it
                └ reading is paused ◄──────┘ too long

A burst of requests is answered with one system call. An idle connection owns no buffer at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from headrace.broker.context import Session
from headrace.broker.security.sasl import sasl_of
from headrace.broker.server.sending import Sender, SocketSender, TlsSender
from headrace.broker.tasks import start_task
from headrace.errors import MalformedError
from headrace.wire.frames import FRAME_BYTES_MAX
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.broker.security.sasl import SaslAuthentication
    from headrace.broker.server.dispatch import Later
    from headrace.broker.server.listener import Listener
    from headrace.broker.server.server import Server

log = logging.getLogger("headrace.broker")

QUEUED_REQUESTS_MAX = 64
"""So many requests may wait behind the one in work before reading stops; what one more read brings is on top."""
QUEUED_BYTES_MAX = 4 * 1024 * 1024
TURN_REQUESTS_MAX = 64
"""So many requests are served in a row before other connections get their turn."""
GATHER_BYTES_MAX = 1024 * 1024
"""Answers of a burst are sent when they come to so much, or at its end."""
UNSENT_BYTES_MAX = 1024 * 1024
"""When the peer leaves more than this in our hands, no further request of it is served until it has taken all of it."""
LINGER_SECONDS_MAX = 10.0
"""How long a connection that is to be closed waits for its peer to take the last answers."""


class Connection(asyncio.BufferedProtocol):
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
        self.sasl = sasl_of(self.session)  # what the peer has to get through before it may ask for anything
        self.transport: asyncio.Transport | None = None
        self.last_active = server.loop.time()
        self._reader = FrameReader(server.frame_bytes_max, server.chunk)
        self._frames: list[Buffer] = []
        self._held_bytes = 0  # by an unfinished frame, as the server has counted them
        self._queue: deque[Buffer] = deque()
        self._queued_bytes = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._task: asyncio.Task[list[Buffer] | None] | None = None  # the answer that comes later
        self._sender: Sender | None = None
        self._unsent_bytes = 0  # as the server has counted them
        self._reading = True
        self._closing: asyncio.TimerHandle | None = None  # hang up when everything is sent, or then
        self._muted = False  # throttled
        self._stopped = False  # no further request is taken
        self._lost = False  # the peer has hung up; requests that arrived before are still served
        self._scheduled = False  # the rest of a long queue has its turn soon

    # -- asyncio's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.session.host = peer[0] if peer else ""
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
        self._drop_frame()  # at once: this object may live until the collector finds it
        self._count_unsent()
        if self._closing is not None:
            self._closing.cancel()
        if self._task is not None:
            self._server.abandon(self._task)
        self._server.disconnected(self)
        self._lost = True
        self._serve()  # with acks=0 a peer may hang up as soon as its last request is written

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
        return False  # who has hung up gets no answers any more

    def pause_writing(self) -> None:
        assert isinstance(self._sender, TlsSender)
        self._sender.paused()

    def resume_writing(self) -> None:
        assert isinstance(self._sender, TlsSender)
        self._sender.resumed()

    # -- requests --------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether the peer has reason to be silent: it waits for us."""
        return self._task is not None or self._muted

    @property
    def _is_stuck(self) -> bool:
        """Whether the peer does not take its answers."""
        return self._unsent_bytes > UNSENT_BYTES_MAX

    def _serve(self) -> None:
        """Answer what is in the queue, as far as that goes without waiting."""
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
                answer = dispatch(self, frame)
            except Exception:  # whatever it is, the peer must not wait for ever
                log.exception("a request of %s could not be dispatched", self.session.host)
                self.close("there is no answer to give")
                return
            if answer is None:
                continue
            if isinstance(answer, list):
                self._answer(answer)
            else:
                self._wait_for(answer)
        if self._out:
            self._flush()
        self._adjust_reading()

    def _continue(self) -> None:
        self._scheduled = False
        self._serve()

    def _wait_for(self, later: Later) -> None:
        self._task = start_task(later.answer, "request")
        self._server.track(self._task, abandonable=later.abandonable)
        self._task.add_done_callback(self._answered)
        if self._lost:
            self._server.abandon(self._task)

    def _answered(self, task: asyncio.Task[list[Buffer] | None]) -> None:
        self._task = None
        if task.cancelled():
            if not self._lost:
                self.close("")
                return
        elif task.exception() is not None:  # logged and counted where tasks are started
            self.close("internal error while handling the request")
            return
        elif (answer := task.result()) is not None:
            self._answer(answer)
        self._serve()

    # -- throttling, the end ---------------------------------------------------------------------

    def mute(self, throttle_ms: float) -> None:
        """Serve nothing for a while."""
        if not self._muted and throttle_ms > 0:
            self._muted = True
            self._server.loop.call_later(throttle_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._muted = False
        self._serve()

    def _update_authentication(self, sasl: SaslAuthentication) -> None:
        """An answer has gone out: the peer may be known now and send larger requests, or be sent away."""
        if sasl.failed:
            self.close("it did not authenticate")
        self._reader.frame_bytes_max = min(sasl.frame_bytes_max or FRAME_BYTES_MAX, self._server.frame_bytes_max)

    def stop_reading(self) -> None:
        """Take no further request."""
        self._drop_queue()
        self._drop_frame()
        self._stopped = True
        self._adjust_reading()

    @property
    def held_bytes(self) -> int:
        """Memory that an unfinished frame takes."""
        return self._held_bytes

    def _count_held(self) -> None:
        held_bytes = self._reader.held_bytes
        self._server.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes
        if self._server.held_bytes > self._server.held_bytes_max:
            self._server.drop_unfinished()

    def _drop_frame(self) -> None:
        self._reader.drop()
        self._count_held()

    def _drop_queue(self) -> None:
        self._server.queued_requests -= len(self._queue)
        self._server.queued_bytes -= self._queued_bytes
        self._queued_bytes = 0
        self._queue.clear()

    def close(self, why: str) -> None:
        """Hang up after what is to be sent; `why` goes to the log if there is anything to say."""
        if why:
            log.info("closing the connection from %s to %s: %s", self.session.host, self.listener.name, why)
        self.stop_reading()
        if self._out:
            self._flush()
        if self.transport is None or self.transport.is_closing() or self._closing is not None:
            return
        self._closing = self._server.loop.call_later(LINGER_SECONDS_MAX, self.transport.abort)
        if not self._unsent_bytes:
            self.transport.close()

    # -- sending, back-pressure ------------------------------------------------------------------

    def _answer(self, buffers: list[Buffer]) -> None:
        self._out += buffers
        for buffer in buffers:
            self._out_bytes += len(buffer)
        if self.sasl is not None:
            self._update_authentication(self.sasl)
        if self._out_bytes >= GATHER_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        """Send what has come together."""
        buffers, self._out, size, self._out_bytes = self._out, [], self._out_bytes, 0
        if self.transport is not None and self._sender is not None and not self.transport.is_closing():
            self._sender.send(buffers, size)
            self._server.sent_bytes += size
            self._count_unsent()

    def _drained(self) -> None:
        """The peer has taken everything."""
        self._count_unsent()
        if self._closing is not None and self.transport is not None:
            self.transport.close()
        self._serve()

    def _count_unsent(self) -> None:
        assert self._sender is not None
        self._server.unsent_bytes += self._sender.unsent_bytes - self._unsent_bytes
        self._unsent_bytes = self._sender.unsent_bytes

    def _adjust_reading(self) -> None:
        """Read on only while there is room for what would come."""
        queued = len(self._queue)
        full = queued > QUEUED_REQUESTS_MAX or self._queued_bytes > QUEUED_BYTES_MAX
        wanted = not (self._stopped or full or (queued and self._server.is_full))
        if wanted != self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

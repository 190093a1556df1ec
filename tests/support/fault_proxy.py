"""A proxy in front of one broker of any make, which loses, delays and refuses requests of clients.

Clients that know its address connect to it only: it puts its own address into Metadata and FindCoordinator responses.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from contextlib import suppress
from types import TracebackType

from headrace.wire import frames
from headrace.wire.api import ApiKey
from headrace.wire.api.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse
from headrace.wire.frames import RequestHeader
from headrace.wire.schema import Message

CONNECT_SECONDS_MAX = 10
HOST = "127.0.0.1"
_ERROR, _ERROR_POSITION = struct.Struct(">h"), 4  # of ApiVersions: after the correlation id


class ProxyFault:
    """What happens to requests of one API, or of all. `hits` counts them. Use it as a context manager."""

    def __init__(self, proxy: FaultProxy, api_key: ApiKey | None, probability: float, count: int | None) -> None:
        self.hits = 0
        self.is_response = self.cuts = False
        self.delay_s = 0.0
        self._proxy = proxy
        self._api_key = api_key
        self._probability = probability
        self._count = count

    def matches(self, api_key: int, is_response: bool, rng: random.Random) -> bool:
        """Return whether a frame is hit, and count it."""
        if is_response is not self.is_response or self._api_key not in (None, api_key):
            return False
        if self.hits == self._count or rng.random() >= self._probability:
            return False
        self.hits += 1
        return True

    def __enter__(self) -> ProxyFault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._proxy.remove(self)


class FaultProxy:
    """Forwards frames; each connection has a thread for each direction."""

    def __init__(self, target: str, seed: int = 0, *, classic: bool = False) -> None:
        """With `classic`, clients do not see the feature `transaction.version`: they use the classic protocol."""
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._is_classic = classic
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._faults: list[ProxyFault] = []  # Guarded by _lock.
        self._sockets: set[socket.socket] = set()  # Guarded by _lock.
        self._is_cut = False
        self.versions: dict[int, int] = {}  # the highest version of each API that was requested
        self._listener = socket.create_server((HOST, 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def _port(self) -> int:
        return int(self._listener.getsockname()[1])

    # -- faults --------------------------------------------------------------------------------

    def lose_responses(
        self, api_key: ApiKey | None = None, *, probability: float = 1.0, count: int | None = None, cut: bool = False
    ) -> ProxyFault:
        """Close the connection instead of forwarding the response; with `cut`, all connections until `heal`."""
        fault = ProxyFault(self, api_key, probability, count)
        fault.is_response, fault.cuts = True, cut
        return self._add(fault)

    def lose_requests(self, api_key: ApiKey | None = None, *, probability: float = 1.0) -> ProxyFault:
        """Close the connection instead of forwarding the request."""
        return self._add(ProxyFault(self, api_key, probability, None))

    def delay_requests(self, seconds: float, api_key: ApiKey | None = None, *, probability: float = 1.0) -> ProxyFault:
        """Forward requests later; those behind them on the connection wait. It survives the client's connection."""
        fault = ProxyFault(self, api_key, probability, None)
        fault.delay_s = seconds
        return self._add(fault)

    def cut(self) -> None:
        """Close all connections, and refuse new ones until `heal`."""
        self._is_cut = True
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            _shut(sock)

    def heal(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def remove(self, fault: ProxyFault) -> None:
        """Remove a fault."""
        with self._lock, suppress(ValueError):
            self._faults.remove(fault)

    def _add(self, fault: ProxyFault) -> ProxyFault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def _hit(self, api_key: int, *, is_response: bool) -> ProxyFault | None:
        with self._lock:
            return next((fault for fault in self._faults if fault.matches(api_key, is_response, self._rng)), None)

    # -- connections ---------------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, CONNECT_SECONDS_MAX)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        with self._lock:
            self._sockets |= {client, server}
        pending: dict[int, RequestHeader] = {}  # by correlation id
        threading.Thread(target=self._forward_responses, args=(server, client, pending), daemon=True).start()
        with suppress(OSError):
            while (frame := _frame(client)) is not None:
                header, _ = frames.decode_request_header(frame)
                self.versions[header.api_key] = max(header.api_version, self.versions.get(header.api_key, 0))
                if (fault := self._hit(header.api_key, is_response=False)) is not None:
                    if not fault.delay_s:
                        break
                    time.sleep(fault.delay_s)
                pending[header.correlation_id] = header
                server.sendall(struct.pack(">i", len(frame)) + frame)
        self._drop(client, server)

    def _forward_responses(
        self, server: socket.socket, client: socket.socket, pending: dict[int, RequestHeader]
    ) -> None:
        with suppress(OSError):
            while (frame := _frame(server)) is not None:
                header = pending.pop(frames.decode_correlation_id(frame))
                if (fault := self._hit(header.api_key, is_response=True)) is not None:
                    if fault.cuts:
                        self.cut()
                    break
                client.sendall(self._with_own_address(header, frame))
        self._drop(client, server)

    def _drop(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._sockets -= {client, server}
        for sock in (client, server):
            _shut(sock)
            sock.close()

    def _with_own_address(self, header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR):
            correlation_id, response = frames.decode_response(header.api_key, header.api_version, frame)
            changed = self._changed(response)
            return b"".join(frames.encode_response(changed, header.api_version, correlation_id))
        if header.api_key == ApiKey.API_VERSIONS and self._is_classic:
            frame = self._without_features(header, frame)
        return struct.pack(">i", len(frame)) + frame

    def _without_features(self, header: RequestHeader, frame: bytes) -> bytes:
        if not _ERROR.unpack_from(frame, _ERROR_POSITION)[0]:  # an error response has version 0
            correlation_id, response = frames.decode_response(header.api_key, header.api_version, frame)
            assert isinstance(response, ApiVersionsResponse)
            changed = response.replace(finalized_features=[])
            return b"".join(frames.encode_response(changed, header.api_version, correlation_id))[4:]
        return frame

    def _changed(self, response: Message) -> Message:
        address = {"host": HOST, "port": self._port}
        if isinstance(response, MetadataResponse):
            return response.replace(brokers=[broker.replace(**address) for broker in response.brokers])
        assert isinstance(response, FindCoordinatorResponse)
        if response.coordinators:
            return response.replace(coordinators=[each.replace(**address) for each in response.coordinators])
        return response.replace(**address) if response.host else response

    def close(self) -> None:
        """Close all sockets, which ends the threads."""
        _shut(self._listener)
        self._listener.close()
        self.cut()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _frame(source: socket.socket) -> bytes | None:
    """Return the next frame without its size; None at the end of the connection."""
    size = _exactly(source, 4)
    return None if size is None else _exactly(source, struct.unpack(">i", size)[0])


def _exactly(source: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        data = source.recv(size)
        if not data:
            return None
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # close alone does not wake a thread that waits on it
        sock.shutdown(socket.SHUT_RDWR)

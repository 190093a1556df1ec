"""A proxy that makes a broker look older: it lowers the versions in ApiVersions, and forwards everything else."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping

from headrace.wire import frames
from headrace.wire.api.metadata import ApiVersionsResponse

API_VERSIONS, REQUEST_VERSION = 18, 3


class CappingProxy:
    """Listens on its own port; `caps` has the highest version for new connections, by API key."""

    def __init__(self, port: int, target_port: int) -> None:
        self._target_port = target_port
        self.caps: Mapping[int, int] = {}
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target_port))
                self._sockets += [client, server]
                threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
                threading.Thread(target=self._forward_responses, args=(server, client), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _forward_responses(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            (size,) = struct.unpack(">i", self._exactly(server, 4))
            correlation_id, response = frames.decode_response(
                API_VERSIONS, REQUEST_VERSION, self._exactly(server, size)
            )
            assert isinstance(response, ApiVersionsResponse)
            client.sendall(b"".join(frames.encode_response(self._capped(response), REQUEST_VERSION, correlation_id)))
            self._pump(server, client)

    def _capped(self, response: ApiVersionsResponse) -> ApiVersionsResponse:
        keys = [
            api.replace(max_version=min(api.max_version, self.caps.get(api.api_key, api.max_version)))
            for api in response.api_keys
        ]
        return response.replace(api_keys=[api for api in keys if api.max_version >= api.min_version])

    @staticmethod
    def _exactly(source: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = source.recv(size - len(data))
            if not more:
                raise OSError("the broker closed the connection")
            data += more
        return data

    def close(self) -> None:
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # close alone does not wake a thread that waits on it
            sock.close()

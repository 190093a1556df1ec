"""The control socket of a broker: a UNIX socket for processes of the broker's user.

    one line of JSON {"op": …, "args": {…}} → one line {"result": …} or {"error": {"kind": …, "message": …}}

The *run file* in the same folder has the pid and the path of the socket. Commands use it to find a broker by its
data folder. A killed broker leaves it behind, and the next one replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace import errors

log = logging.getLogger("headrace.broker")

SOCKET_NAME = "control.sock"
RUN_FILE_NAME = "broker.json"
PATH_BYTES_MAX = 100  # of a UNIX socket: 108 on Linux, 104 elsewhere, including a terminating zero
LINE_BYTES_MAX = 64 * 1024
CLIENTS_MAX = 16
IDLE_SECONDS_MAX = 60.0
CALL_SECONDS_MAX = 10.0

Operation = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """The addresses and process of a running broker."""

    bootstrap: str  # the advertised host:port
    listeners: dict[str, str]  # the addresses it listens on, by name
    pid: int
    data_dir: str
    control: str  # the path of the control socket
    schema_registry: str | None = None  # the URL of the schema registry
    metrics: str | None = None  # the URL of the metrics

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class ControlServer:
    """Serves the control socket. Event loop only."""

    def __init__(self, data_dir: Path, operations: Mapping[str, Operation]) -> None:
        self._operations = operations
        self._data_dir = data_dir
        self._private_dir: str | None = None
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self.path = data_dir / SOCKET_NAME

    async def start(self) -> None:
        if len(os.fsencode(self.path.absolute())) > PATH_BYTES_MAX:
            self._private_dir = tempfile.mkdtemp(prefix="headrace-")  # accessible to this user only
            self.path = Path(self._private_dir) / SOCKET_NAME
        self.path.unlink(missing_ok=True)  # left by a killed broker: the folder lock proves that it is gone
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(os.fspath(self.path))
            self.path.chmod(0o600)  # before it listens, so that no other user can connect
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=LINE_BYTES_MAX)
        except BaseException:
            listener.close()
            raise

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._clients - {asyncio.current_task()}:
            task.cancel()
        self.path.unlink(missing_ok=True)
        if self._private_dir is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self._private_dir)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            # A line that is too long is a ValueError, an idle client a TimeoutError.
            with contextlib.suppress(ValueError, OSError, asyncio.CancelledError):
                while len(self._clients) <= CLIENTS_MAX:
                    async with asyncio.timeout(IDLE_SECONDS_MAX):
                        line = await reader.readline()
                        if not line:
                            break
                        writer.write(await self.respond(line))
                        await writer.drain()
        finally:
            self._clients.discard(task)
            writer.close()

    async def respond(self, line: bytes) -> bytes:
        """Return the response to a line."""
        try:
            response = {"result": await self._operate(line)}
        except errors.HeadraceError as error:
            response = {"error": {"kind": type(error).__name__, "message": str(error.args[0]), **_code_of(error)}}
        except Exception as error:
            log.exception("internal error in an operation of the control socket")
            response = {"error": {"kind": "IllegalStateError", "message": f"{type(error).__name__}: {error}"}}
        return json.dumps(response).encode() + b"\n"

    async def _operate(self, line: bytes) -> object:
        try:
            request = json.loads(line)
            name, arguments = request["op"], request.get("args", {})
        except (ValueError, TypeError, LookupError, AttributeError):
            raise errors.ConfigError('invalid request: expected a line of JSON {"op": …, "args": {…}}') from None
        operation = self._operations.get(name) if isinstance(name, str) else None
        if operation is None or not isinstance(arguments, dict):
            names = ", ".join(sorted(self._operations))
            raise errors.ConfigError(f"unknown operation {name!r}: expected one of {names}")
        result = operation(arguments)
        return await result if inspect.isawaitable(result) else result


def _code_of(error: errors.HeadraceError) -> dict[str, int]:
    return {"code": error.code} if isinstance(error, errors.BrokerError) else {}


def call(path: Path | str, op: str, seconds_max: float = CALL_SECONDS_MAX, **arguments: Any) -> Any:
    """Call an operation of a broker; return its result or raise its error."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds_max)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(json.dumps({"op": op, "args": arguments}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
        except TimeoutError as error:
            raise errors.TimedOutError(
                f"timed out after {seconds_max:g} s waiting for the broker at {path} to respond to {op}"
            ) from error
        except OSError as error:
            raise errors.ConnectionFailedError(f"no broker responds at {path}: {error.strerror or error}") from error
    if not line.endswith(b"\n"):
        raise errors.ConnectionFailedError(f"the broker at {path} closed the connection during {op}")
    response = json.loads(line)
    if "error" in response:
        raise _raised(response["error"])
    return response["result"]


def _raised(error: dict[str, Any]) -> errors.HeadraceError:
    """Return the error that the broker raised."""
    if "code" in error:  # a BrokerError, perhaps of a subclass
        return errors.BrokerError(error["message"], code=error["code"])
    kind = errors.ConfigError if error["kind"] == "ConfigError" else errors.IllegalStateError
    return kind(error["message"])


def write_run_file(data_dir: Path, facts: Mapping[str, object]) -> None:
    """Write the run file atomically."""
    partial = data_dir / f"{RUN_FILE_NAME}.partial"
    partial.write_text(json.dumps(facts) + "\n")
    partial.replace(data_dir / RUN_FILE_NAME)


def read_run_file(data_dir: Path) -> dict[str, Any] | None:
    """Return the contents of the run file, perhaps of a killed broker; None if there is none."""
    try:
        facts = json.loads((data_dir / RUN_FILE_NAME).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def remove_run_file(data_dir: Path) -> None:
    (data_dir / RUN_FILE_NAME).unlink(missing_ok=True)

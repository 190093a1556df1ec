"""The broker's side door: a UNIX socket for who may do as the broker's own user may.

    one line of JSON {"op": …, "args": {…}} → one line {"result": …} or {"error": {"kind": …, "message": …}}

Beside it lies the *run file*: who runs here, and where the socket is. It is how a command finds a broker by its data
folder alone, and what is left of a broker that was killed, for the next one to replace.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace import errors

log = logging.getLogger("headrace.broker")

SOCKET_NAME = "control.sock"
RUN_FILE_NAME = "broker.json"
PATH_BYTES_MAX = 100  # of a UNIX socket: 108 on Linux, 104 elsewhere, with a zero at the end
LINE_BYTES_MAX = 64 * 1024
CLIENTS_MAX = 16
IDLE_SECONDS_MAX = 60.0
CALL_SECONDS_MAX = 10.0

Operation = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What there is to know about a broker that answers."""

    bootstrap: str  # what clients are told: host:port
    listeners: dict[str, str]  # where it really listens, by name
    pid: int
    data_dir: str
    control: str  # the path of the control socket

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class ControlServer:
    """Answers on the socket. Event loop only."""

    def __init__(self, data_dir: Path, operations: Mapping[str, Operation]) -> None:
        self._operations = operations
        self._data_dir = data_dir
        self._private_dir: str | None = None
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self.path = data_dir / SOCKET_NAME

    async def start(self) -> None:
        if len(os.fsencode(self.path.absolute())) > PATH_BYTES_MAX:
            import tempfile

            self._private_dir = tempfile.mkdtemp(prefix="headrace-")  # nobody else may enter it
            self.path = Path(self._private_dir) / SOCKET_NAME
        self.path.unlink(missing_ok=True)  # of a broker that was killed: the lock on the folder says that it is gone
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(os.fspath(self.path))
            self.path.chmod(0o600)  # nobody can connect before it listens
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
            # An overlong line is a ValueError, a client that stays away too long a TimeoutError.
            with contextlib.suppress(ValueError, OSError, asyncio.CancelledError):
                while len(self._clients) <= CLIENTS_MAX:
                    async with asyncio.timeout(IDLE_SECONDS_MAX):
                        line = await reader.readline()
                        if not line:
                            break
                        writer.write(await self.answer(line))
                        await writer.drain()
        finally:
            self._clients.discard(task)
            writer.close()

    async def answer(self, line: bytes) -> bytes:
        """The answer to one line."""
        try:
            answer = {"result": await self._operate(line)}
        except errors.HeadraceError as error:
            answer = {"error": {"kind": type(error).__name__, "message": str(error.args[0]), **_code_of(error)}}
        except Exception as error:
            log.exception("an operation of the control socket failed")
            answer = {"error": {"kind": "IllegalStateError", "message": f"{type(error).__name__}: {error}"}}
        return json.dumps(answer).encode() + b"\n"

    async def _operate(self, line: bytes) -> object:
        try:
            request = json.loads(line)
            name, arguments = request["op"], request.get("args", {})
        except (ValueError, TypeError, LookupError, AttributeError):
            raise errors.ConfigError('a request is a line of JSON: {"op": …, "args": {…}}') from None
        operation = self._operations.get(name) if isinstance(name, str) else None
        if operation is None or not isinstance(arguments, dict):
            raise errors.ConfigError(f"there is no operation {name!r}; there are {', '.join(sorted(self._operations))}")
        result = operation(arguments)
        return await result if inspect.isawaitable(result) else result


def _code_of(error: errors.HeadraceError) -> dict[str, int]:
    return {"code": error.code} if isinstance(error, errors.BrokerError) else {}


def call(path: Path | str, op: str, seconds_max: float = CALL_SECONDS_MAX, **arguments: Any) -> Any:
    """What the broker at the other end of a control socket answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds_max)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(json.dumps({"op": op, "args": arguments}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
        except TimeoutError as error:
            raise errors.TimedOutError(f"the broker did not answer {op} for {seconds_max:g} s at {path}") from error
        except OSError as error:
            raise errors.ConnectionFailedError(f"no broker answers at {path}: {error.strerror or error}") from error
    if not line.endswith(b"\n"):
        raise errors.ConnectionFailedError(f"the broker at {path} hung up on {op}")
    answer = json.loads(line)
    if "error" in answer:
        raise _raised(answer["error"])
    return answer["result"]


def _raised(told: dict[str, Any]) -> errors.HeadraceError:
    """The error that the broker raised, as one of our own."""
    if "code" in told:  # a BrokerError, which may be of a subclass
        return errors.BrokerError(told["message"], code=told["code"])
    kind = errors.ConfigError if told["kind"] == "ConfigError" else errors.IllegalStateError
    return kind(told["message"])


def write_run_file(data_dir: Path, facts: Mapping[str, object]) -> None:
    """Say who runs here; whole or not at all."""
    partial = data_dir / f"{RUN_FILE_NAME}.partial"
    partial.write_text(json.dumps(facts) + "\n")
    partial.replace(data_dir / RUN_FILE_NAME)


def read_run_file(data_dir: Path) -> dict[str, Any] | None:
    """Who runs here, or was killed here; None: nobody."""
    try:
        facts = json.loads((data_dir / RUN_FILE_NAME).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def remove_run_file(data_dir: Path) -> None:
    (data_dir / RUN_FILE_NAME).unlink(missing_ok=True)

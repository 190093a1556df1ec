"""Free ports, sockets that listen on them, and the processes that use ports."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from headrace.errors import ConfigError, IllegalStateError

# Below the range for outgoing connections: a client that reconnects to a dead broker on a port in that range could get
# the same port as its source port and connect to itself.
_FREE_PORTS = range(20_000, 32_000)
_LOOPBACK = "127.0.0.1"
_LISTENING = "0A"
_COMMAND_CHARACTERS_MAX = 80


def free_port() -> int:
    """Return a port of the loopback interface that is not in use."""
    for port in random.SystemRandom().sample(_FREE_PORTS, len(_FREE_PORTS)):
        if not is_taken(_LOOPBACK, port):
            return port
    raise IllegalStateError(f"no free port on {_LOOPBACK} in {_FREE_PORTS.start} to {_FREE_PORTS.stop}")


def is_taken(host: str, port: int) -> bool:
    """Return whether a server cannot listen on a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do, otherwise a recently closed connection would make the port look used.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def bind(host: str, port: int, listener: str) -> socket.socket:
    """Return a socket bound to an address, or to all IPv4 and IPv6 addresses if `host` is empty."""
    try:
        rows = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"listener {listener}: cannot resolve {host!r}: {error}") from error
    family, _, _, _, address = rows[0]
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((str(address[0]), port), family=family)


def holder_of(port: int) -> str | None:
    """Return the process that listens on a port, as text; None if it is unknown (another user's, another system)."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in sockets for link in (folder / "fd").iterdir()):
                return f"pid {folder.name} ({command_of(int(folder.name))})"
        except OSError:  # it has ended, or is another user's
            continue
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for columns in map(str.split, lines):
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(columns[9])
    return inodes


def command_of(pid: int) -> str:
    """Return the command line of a process, shortened; "?" if it is unknown."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    line = b" ".join(words).decode(errors="replace")
    return line if len(line) <= _COMMAND_CHARACTERS_MAX else f"{line[: _COMMAND_CHARACTERS_MAX - 1]}…"

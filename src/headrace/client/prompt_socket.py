"""A non-blocking socket that keeps the GIL in send and receive.

Without the compiled kernel it is Python's socket, which releases the GIL: see `_prompt.pyx` for the cost.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.wire.kernel import KERNEL_NAME
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    PromptSocket = socket.socket
else:
    try:
        if KERNEL_NAME != "compiled":
            raise ImportError("the Python kernel is in use")
        from headrace.client import _prompt
    except ImportError:
        PromptSocket = socket.socket
    else:

        class PromptSocket(socket.socket):
            """The methods that `Connection` uses: without flags and ancillary data."""

            def send(self, part: Buffer) -> int:
                return _prompt.sendmsg(self.fileno(), (part,))

            def sendmsg(self, parts: Iterable[Buffer]) -> int:
                return _prompt.sendmsg(self.fileno(), parts)

            def recv_into(self, room: Buffer) -> int:
                return _prompt.recv_into(self.fileno(), room)


__all__ = ["PromptSocket"]

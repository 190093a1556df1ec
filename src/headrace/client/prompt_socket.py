"""A socket that does not block, and therefore need not give up the GIL to send or receive.

Where nothing could be compiled it is Python's own, which gives it up: see `_prompt.pyx` for what that costs.
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
            raise ImportError("the Python kernel was asked for, or is all there is")
        from headrace.client import _prompt
    except ImportError:
        PromptSocket = socket.socket
    else:

        class PromptSocket(socket.socket):
            """As far as a connection needs it: no flags, no ancillary data."""

            def send(self, part: Buffer) -> int:
                return _prompt.sendmsg(self.fileno(), (part,))

            def sendmsg(self, parts: Iterable[Buffer]) -> int:
                return _prompt.sendmsg(self.fileno(), parts)

            def recv_into(self, room: Buffer) -> int:
                return _prompt.recv_into(self.fileno(), room)


__all__ = ["PromptSocket"]

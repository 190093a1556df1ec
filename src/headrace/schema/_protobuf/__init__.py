"""The loops of the Protobuf codec: compiled where the kernel is, else the Python reference, which defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.wire.kernel import KERNEL_NAME

if TYPE_CHECKING or KERNEL_NAME == "python":
    from headrace.schema._protobuf.reference import PlanDecoder, PlanEncoder
else:
    from headrace.schema._protobuf.compiled import PlanDecoder, PlanEncoder

__all__ = ["PlanDecoder", "PlanEncoder"]

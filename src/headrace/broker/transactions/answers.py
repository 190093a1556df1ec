"""What clients of older versions are told."""

from __future__ import annotations

from headrace.errors import BrokerError, Code


def code_of(error: BrokerError, api_version: int, *, fenced_since: int) -> int:
    """The code for a response: clients from before PRODUCER_FENCED know that state by the code of a wrong epoch."""
    if error.code == Code.PRODUCER_FENCED and api_version < fenced_since:
        return Code.INVALID_PRODUCER_EPOCH
    return error.code

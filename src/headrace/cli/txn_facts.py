"""What is known of transactions, for JSON and for people."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.cli.output import NotFoundError
from headrace.cli.tables import duration
from headrace.cli.times import shown_time
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient, TransactionDescription

UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States of a transaction that is open, or on its way to its end."""


def known(admin: AdminClient, transactional_id: str) -> TransactionDescription:
    found = described(admin, transactional_id)
    if found is None:
        raise NotFoundError(
            f"there is no transactional id {transactional_id!r}; `headrace txn list` shows those there are"
        )
    return found


def described(admin: AdminClient, transactional_id: str) -> TransactionDescription | None:
    try:
        return admin.describe_transactions([transactional_id])[transactional_id]
    except BrokerError as error:
        if error.code != Code.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return None


def age_ms_of(found: TransactionDescription | None) -> int | None:
    if found is None or found.start_ms is None or found.state not in UNDER_WAY:
        return None
    return max(0, int(time.time() * 1000 - found.start_ms))


def span(age_ms: int | None) -> str:
    return duration(None if age_ms is None else age_ms / 1000)


def facts_of(found: TransactionDescription) -> dict[str, Any]:
    age_ms = age_ms_of(found)
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms,
        "age_ms": age_ms,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(found.partitions)],
    }


def lines_of(found: TransactionDescription) -> Iterable[str]:
    age_ms = age_ms_of(found)
    yield f"{found.transactional_id}: {found.state}"
    yield f"  producer {found.producer_id}, epoch {found.producer_epoch}, time-out {found.timeout_ms / 1000:g} s"
    if age_ms is not None:
        left = f"{span(found.timeout_ms - age_ms)} are left" if age_ms < found.timeout_ms else "its time is up"
        yield f"  open since {shown_time(found.start_ms)}, for {span(age_ms)}; {left}"
    if found.partitions:
        yield "  in " + ", ".join(map(str, sorted(found.partitions)))

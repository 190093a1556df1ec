"""Transactions for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.cli.output import NotFoundError
from headrace.client.facts.times import duration_ms, shown_time

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient, TransactionDescription


def known(admin: AdminClient, transactional_id: str) -> TransactionDescription:
    from headrace.client.facts.transactions import described

    found = described(admin, transactional_id)
    if found is None:
        raise NotFoundError(
            f"there is no transactional id {transactional_id!r}; `headrace txn list` shows those there are"
        )
    return found


def lines_of(found: TransactionDescription) -> Iterable[str]:
    from headrace.client.facts.transactions import age_ms_of

    age_ms = age_ms_of(found)
    yield f"{found.transactional_id}: {found.state}"
    yield f"  producer {found.producer_id}, epoch {found.producer_epoch}, time-out {found.timeout_ms / 1000:g} s"
    if age_ms is not None:
        left = f"{duration_ms(found.timeout_ms - age_ms)} are left" if age_ms < found.timeout_ms else "its time is up"
        yield f"  open since {shown_time(found.start_ms)}, for {duration_ms(age_ms)}; {left}"
    if found.partitions:
        yield "  in " + ", ".join(map(str, sorted(found.partitions)))

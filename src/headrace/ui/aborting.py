"""Aborting transactions from a page: asked first, then done, then told."""

from __future__ import annotations

from headrace.client.admin import AdminClient, HangingTransaction
from headrace.client.facts.hanging import abort_hanging, hanging_at
from headrace.ui.actions import run_action
from headrace.ui.parts import Problem
from headrace.ui.transaction_rows import age_text
from headrace.ui.transaction_watch import OpenTransaction
from headrace.ui.view import View

WHAT = "Abort the transaction"


async def abort_by_id(view: View, problem: Problem, one: OpenTransaction) -> None:
    """Shut out whoever uses the id, which aborts what it has open."""
    name = one.described.transactional_id

    def fence(admin: AdminClient) -> str:
        admin.fence_producers([name])
        return name

    await run_action(
        view,
        problem,
        fence,
        what=WHAT,
        confirm=f"Abort the transaction of {name!r}, open for {age_text(one.described)} in "
        f"{len(one.described.partitions):,} partitions? What it has written will never be seen by readers of committed "
        "records, and its producer is shut out.",
        done=f"Aborted; who used {name} before is shut out",
    )


async def abort_in_partition(view: View, problem: Problem, one: HangingTransaction) -> None:
    """Write the marker that no coordinator will write. Whether it really hangs is looked at once more."""
    start = one.producer.transaction_start_offset
    assert start is not None

    def mark(admin: AdminClient) -> str:
        abort_hanging(admin, one.partition, hanging_at(admin, one.partition, start))
        return str(one.partition)

    await run_action(
        view,
        problem,
        mark,
        what=WHAT,
        confirm=f"Write an abort marker into {one.partition}, for the transaction of producer "
        f"{one.producer.producer_id} that begins at offset {start:,}? Its records will never be seen by readers of "
        "committed records.",
        done=f"Aborted in {one.partition}, from offset {start:,} on",
    )

"""Checks of a batch against the last decision of its query: is it new, a replay, or neither?

    batch number   above the last decision: new.  Equal: a replay if the rows are the same.  Else: an error
    same rows      by source offsets where rows carry them, else by fingerprint, else by row count (replay.check)
    source offsets the batch was planned with the coverage of the current decisions, and reads behind its own last batch

Nothing here reads or writes a topic: the committer calls these checks with the decisions it has read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.spark.commit_types import WRITE_PREFIX, Batch
from headrace.spark.decisions import Decision
from headrace.spark.errors import NotDecidedError, RepeatedBatchError, SinkError
from headrace.spark.holders import utc_text
from headrace.spark.origins import ID_PREFIX, NOTHING, STATELESS, Coverage, base_for, covered_by
from headrace.spark.sink_options import CHECK_FINGERPRINT, CHECK_NONE

log = logging.getLogger("headrace.spark")

Decisions = Mapping[str, Decision]
"""The last decision of each query of a sink, by query."""


class ReplayChecks:
    """The checks of one sink: its batches against its decisions."""

    def __init__(self, sink: str, replay_check: str) -> None:
        self._sink = sink
        self._replay_check = replay_check
        self._has_logged_skipped = False

    # -- batches that were decided before --------------------------------------------------------

    def is_conflicting(self, batch: Batch, last: Decision | None) -> bool:
        """Whether its number was decided before for other rows. A healthy query replays only its last batch, as is."""
        if last is None or batch.number > last.batch:
            return False
        return batch.number < last.batch or not self._is_same(batch, last)

    def _is_same(self, batch: Batch, last: Decision) -> bool:
        """Whether a batch with the number of the last decision may be skipped because its rows are delivered."""
        if self._replay_check == CHECK_NONE:
            return True
        is_from_decided = _is_from_decided_records(batch, last)
        if is_from_decided is False:
            return False  # equal rows from other offsets are other rows
        if is_from_decided and batch.rows <= last.rows:
            return True  # the same source records, or what is left of them
        if self._replay_check == CHECK_FINGERPRINT and batch.fingerprint is not None and last.fingerprint is not None:
            return batch.fingerprint == last.fingerprint
        return batch.rows == last.rows

    def conflict(self, batch: Batch, last: Decision) -> RepeatedBatchError:
        """Return the error for a batch number or write.id that was decided before for other rows."""
        now = f"{batch.rows} rows" if batch.fingerprint is None else str(batch.fingerprint)
        then = f"{last.rows} rows" if last.fingerprint is None else str(last.fingerprint)
        if batch.is_write:
            return RepeatedBatchError(
                f"write.id {batch.query.removeprefix(WRITE_PREFIX)!r} was used before for other rows: now {now}; then "
                f"{then}, decided by {_decider(last)}. Nothing of this write is visible. Use a new write.id for new "
                "rows; to repeat a write, give it the rows that it had. If it computes other rows each time (rand(), "
                "uuid()), set replay.check=rows or replay.check=none: then the rows of the first write stand"
            )
        is_last = batch.number == last.batch
        return RepeatedBatchError(
            f"batch {batch.number} of query {batch.query} (sink.id {self._sink!r}) "
            f"{'comes again with other rows' if is_last else f'comes after batch {last.batch}'}: now {now}; batch "
            f"{last.batch} had {then}, decided by {_decider(last)}. Nothing of this batch is visible. Possible causes, "
            f"the most likely first: {_CAUSES_LAST_BATCH if is_last else _CAUSES_EARLIER_BATCH} continue with the "
            f"checkpoint that has batch {last.batch}, or set a new sink.id, which delivers the rows of this "
            "checkpoint, some of them a second time"
        )

    def log_replay(self, batch: Batch, last: Decision) -> None:
        """Log that a replay is skipped; as a warning if its rows are not known to be the decided ones."""
        is_proven = None not in (batch.fingerprint, last.fingerprint) and batch.fingerprint == last.fingerprint
        reason = ""
        if not is_proven:
            reason = f" (replay.check={self._replay_check}: whether they are the same rows is not known)"
            if _is_from_decided_records(batch, last):
                reason = (
                    f", because they come from source records of the {last.rows} rows that were decided. They are not "
                    "the same rows: source records are gone since then (failOnDataLoss=false, retention, compaction), "
                    "or the query computes other rows when a batch is run again, or was changed"
                )
        log.log(
            logging.INFO if is_proven else logging.WARNING,
            "sink %s: batch %d of query %s was decided before, by %s: its %d rows are not written again%s",
            *(self._sink, batch.number, batch.query, _decider(last), batch.rows, reason),
        )

    def in_doubt_remedy(self, batch: Batch, *, is_single_use: bool) -> str:
        """Return what to do if it is not known whether a batch is decided, or whether all of it is visible."""
        if not batch.is_write:
            return "Start the query again: it reads the decisions first, and finishes the batch if it is decided"
        if not batch.erase_decision:
            return (
                "Run the write again with the same rows and write.id: it reads the decisions first, and finishes the "
                "batch if it is decided"
            )
        finish = "" if is_single_use else f"The next write to sink.id {self._sink!r} finishes a decided batch. "
        return (
            f"{finish}Compare the topic with the rows before you run this write again: it has no write.id to be "
            "recognised by, so rows that were delivered would be delivered again. Set write.id to make a write "
            "repeatable"
        )

    # -- source offsets --------------------------------------------------------------------------

    def is_stale(self, batch: Batch, decisions: Decisions) -> bool:
        """Whether another query has decided since the batch was planned: then the batch may repeat its rows."""
        if batch.origin is None:
            return False
        return base_for(decisions, batch.query, batch.number).digest() != batch.origin.base_digest

    def check_not_stale(self, batch: Batch, decisions: Decisions) -> None:
        if self.is_stale(batch, decisions):
            raise NotDecidedError(
                f"batch {batch.number}: another query of sink.id {self._sink!r} has delivered rows since the batch was "
                "planned, possibly the same rows (source.offsets). Nothing of the batch is visible. Start this query "
                "again: the batch is then planned with what the other query has delivered. This run holds the sink "
                "now, so the other query is fenced at its next commit"
            )

    def check_order(self, batch: Batch, last: Decision | None) -> None:
        """Refuse rows from before the offsets that the query has covered.

        They are rows of a stateful query, of a topic that is read twice, or of a recreated topic without topic ids. In
        all three cases the offsets do not tell which rows were delivered.
        """
        if batch.origin is None or last is None:
            return
        for source, ((first, _), *_) in batch.origin.covered.intervals.items():
            covered = last.offsets.intervals.get(source)
            if covered is not None and first <= covered[-1][1]:
                recreated = (
                    "The rows have no topic id, so the topic may have been deleted and created again: then set a new "
                    "sink.id. Otherwise, "
                )
                raise SinkError(
                    f"batch {batch.number} has a row from offset {first} of {source}, but earlier batches of query "
                    f"{batch.query} have rows up to {covered[-1][1]}. "
                    f"{'' if source.topic.startswith(ID_PREFIX) else recreated}{STATELESS}, which read a topic once. "
                    "Leave source.offsets out, and set a new sink.id. Nothing of the batch is visible"
                )

    def log_skipped(self, batch: Batch, decisions: Decisions) -> None:
        """Log how many rows the tasks have skipped; the first time, and for rows without a topic id, as a warning."""
        origin = batch.origin
        if origin is None or not origin.skipped:
            return
        others = sorted(query for query, last in decisions.items() if query != batch.query and last.offsets.intervals)
        log.log(
            logging.INFO if self._has_logged_skipped and not origin.unproven else logging.WARNING,
            "sink %s: batch %d of query %s: skipped %d rows whose source offsets were delivered before by %s%s",
            *(self._sink, batch.number, batch.query, origin.skipped, ", ".join(others)),
            f"; {origin.unproven} of them have no topic id: if the topic was recreated, they are lost"
            if origin.unproven
            else "",
        )
        self._has_logged_skipped = True

    def coverage(self, batch: Batch, decisions: Decisions) -> tuple[Coverage, Coverage]:
        """Return `offsets` and `base` for the decision on a batch: without source.offsets, those of the last one."""
        last = decisions.get(batch.query)
        if batch.origin is None:
            return (NOTHING, NOTHING) if last is None else (last.offsets, last.base)
        if last is not None and not last.offsets.intervals:
            log.warning(
                "sink %s: batch %d of query %s is the first one decided with source.offsets. The offsets of earlier "
                "batches are not recorded: a new checkpoint that reads their rows again delivers them again",
                *(self._sink, batch.number, batch.query),
            )
        return covered_by(last, batch.origin.covered), base_for(decisions, batch.query, batch.number)


def _is_from_decided_records(batch: Batch, last: Decision) -> bool | None:
    """Whether all rows come from source offsets of the decided batch; None if that is not known."""
    if batch.origin is None or not last.batch_offsets.intervals or last.batch_offsets.may_have(batch.origin.covered):
        return None
    return last.batch_offsets.has(batch.origin.covered)


def _decider(decision: Decision) -> str:
    driver = "" if decision.driver is None else f" ({decision.driver})"
    return f"run {decision.run}{driver} at {utc_text(decision.at_ms)}"


_CAUSES_LAST_BATCH = (
    "(1) the query computes other rows when a batch is run again (rand(), uuid(), a table that has changed), or was "
    "changed; (2) source records are gone since then (failOnDataLoss=false, retention, compaction); (3) the checkpoint "
    "was restored from a backup, or copied. For (1) and (2), start the query with replay.check=rows if the number of "
    "rows is the same, else with replay.check=none: the decided rows stand, the rows of this replay are not "
    "delivered. For (3),"
)
_CAUSES_EARLIER_BATCH = (
    "(1) the checkpoint was restored from a backup; (2) it is a copy, and another query has continued with the other "
    "copy; (3) its newest files are lost. For all of them,"
)

"""Traces of the commit protocol, for tests only: what a committer calls, and what the brokers respond, as JSON lines.

    failpoint option `trace=FILE` → TracedCommitter, TracedLedger, … → FILE → tools/traces.py: replays it on the model

All processes of a query append to one file, so its lines are in the order of time. Every call has a line when it begins
and, unless its process is killed, another when it returns: it takes effect in between.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace.client.blocking import BlockingClient
from headrace.spark.commit_types import Batch
from headrace.spark.committer import Committer
from headrace.spark.decisions import Decision, TaskTransaction
from headrace.spark.errors import FencedError, NotDecidedError
from headrace.spark.failpoints import Failpoints
from headrace.spark.holders import Holders
from headrace.spark.ledger import TRANSACTION_MS, Ledger, Rows
from headrace.spark.sink_options import SinkOptions
from headrace.spark.transactions import ONGOING, EndTxnResult, OpenState, Outcome, Redo, Transactions
from headrace.telemetry.listeners import NULL_COMMIT_LISTENER, CommitListener

OK, FENCED, NOT_DONE, UNKNOWN = "ok", "fenced", "not done", "unknown"
"""Results: `not done` had no effect; whether `unknown` had one only the log shows."""


class Trace:
    """The calls of one committer, appended to a file."""

    def __init__(self, path: str, sink: str, run: str, process: str = "") -> None:
        self._path = path
        self._identity = {"sink": sink, "run": run, "process": f"{process}{os.getpid()}-{uuid.uuid4().hex[:8]}"}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def call(self, name: str, **arguments: object) -> Iterator[dict[str, Any]]:
        """Write a line before and after the block. What it puts into the yielded dictionary is in the second one."""
        number = next(self._numbers)
        self._write({"call": name, "number": number, **arguments})
        returned: dict[str, Any] = {"result": OK}
        try:
            yield returned
        except BaseException as error:
            kinds = ((FencedError, FENCED), (NotDecidedError, NOT_DONE))
            returned["result"] = next((result for kind, result in kinds if isinstance(error, kind)), UNKNOWN)
            returned["error"] = type(error).__name__
            raise
        finally:
            self._write({"return": name, "number": number, **returned})

    def _write(self, fields: dict[str, object]) -> None:
        line = json.dumps({**self._identity, **fields}, separators=(",", ":")) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())  # one write: lines of several processes do not mix
        finally:
            os.close(descriptor)


class TracedLedger(Ledger):
    def __init__(self, trace: Trace, options: SinkOptions, sink: str, client: BlockingClient) -> None:
        super().__init__(options, sink, client)
        self._trace = trace

    def open(self, transaction_ms: int = TRANSACTION_MS) -> None:
        with self._trace.call("open"):
            super().open(transaction_ms)

    def read(self) -> dict[str, Decision]:
        with self._trace.call("read") as returned:
            decisions = super().read()
            returned["decisions"] = [_decision(decision) for decision in decisions.values()]
            returned["holders"] = [holder.run for holder in self.holders.history]
        return decisions

    def write_holders(self, holders: Holders) -> None:
        with self._trace.call("hold"):
            super().write_holders(holders)

    def write(
        self,
        decision: Decision,
        rows: Rows = (),
        *,
        as_tombstone: bool = False,
        on_rows: Callable[[], None] = lambda: None,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        with self._trace.call("write", decision=_decision(decision)):
            super().write(decision, rows, as_tombstone=as_tombstone, on_rows=on_rows, on_written=on_written)


class TracedTransactions(Transactions):
    def __init__(self, trace: Trace, client: BlockingClient) -> None:
        super().__init__(client)
        self._trace = trace

    def end(
        self, transactions: Sequence[TaskTransaction], *, committed: bool, between: Callable[[], None] = lambda: None
    ) -> dict[str, EndTxnResult]:
        with self._trace.call("end", transactions=_identities(transactions), committed=committed) as returned:
            results = super().end(transactions, committed=committed, between=between)
            returned["refused"] = [key for key, result in results.items() if result is EndTxnResult.REFUSED]
        return results

    def describe(self, ids: Iterable[str]) -> dict[str, OpenState] | None:
        with self._trace.call("describe") as returned:
            states = super().describe(ids)
            returned["open"] = [
                (key, state.producer_id, state.epoch) for key, state in (states or {}).items() if state.state == ONGOING
            ]
        return states

    def fence(self, ids: Iterable[str]) -> None:
        fenced = sorted(ids)
        with self._trace.call("fence", ids=fenced):
            super().fence(fenced)


class TracedRedo(Redo):
    def __init__(self, trace: Trace, client: BlockingClient) -> None:
        super().__init__(client)
        self._trace = trace

    def outcome(self, decision: Decision, transaction: TaskTransaction) -> Outcome:
        with self._trace.call("outcome", transaction=transaction.identity) as returned:
            outcome = super().outcome(decision, transaction)
            returned["visible"] = outcome is Outcome.VISIBLE
        return outcome


class TracedCommitter(Committer):
    """A committer that writes a trace; options as of Committer."""

    def __init__(
        self, trace: Trace, options: SinkOptions, sink: str, run: str, client: BlockingClient, **given: Any
    ) -> None:
        ports = TracedLedger(trace, options, sink, client), TracedTransactions(trace, client), TracedRedo(trace, client)
        super().__init__(sink, run, *ports, **given)
        self._trace = trace

    def commit(self, batch: Batch, listener: CommitListener = NULL_COMMIT_LISTENER) -> None:
        with self._trace.call("commit", **_batch(batch)):
            super().commit(batch, listener)

    def abort(self, batch: Batch, listener: CommitListener = NULL_COMMIT_LISTENER) -> None:
        with self._trace.call("abort", **_batch(batch)):
            super().abort(batch, listener)


def new_committer(
    options: SinkOptions, sink: str, run: str, client: BlockingClient, failpoints: Failpoints, **given: Any
) -> Committer:
    """Return a committer that writes a trace if the failpoints have a file for it."""
    if failpoints.trace:
        trace = Trace(failpoints.trace, sink, run)
        return TracedCommitter(trace, options, sink, run, client, failpoints=failpoints, **given)
    ports = Ledger(options, sink, client), Transactions(client), Redo(client)
    return Committer(sink, run, *ports, failpoints=failpoints, **given)


def _batch(batch: Batch) -> dict[str, object]:
    return {
        "query": batch.query,
        "batch": batch.number,
        "rows": str(batch.fingerprint),
        "inline": batch.inline_rows,
        "transactions": _identities(batch.transactions),
    }


def _decision(decision: Decision) -> dict[str, object]:
    return {
        "query": decision.query,
        "batch": decision.batch,
        "run": decision.run,
        "transactions": _identities(decision.transactions),
        "redone": sorted(decision.redone),
        "finished": decision.is_finished,
    }


def _identities(transactions: Sequence[TaskTransaction]) -> list[tuple[str, int, int]]:
    return [transaction.identity for transaction in transactions]

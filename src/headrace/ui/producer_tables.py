"""The tables about one producer: errors, batches that wait, brokers, topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.ui import formatting
from headrace.ui.addresses import topic_address
from headrace.ui.parts import section
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.told_producers import Look, ReachedBroker, ToldError, ToldProducer, WaitingBatch

PAGE_ROWS = 10

Told = Callable[[], ToldProducer | None]


def _look(told: Told) -> Look | None:
    found = told()
    return None if found is None else found.last


def errors_table(told: Told) -> ServerTable:
    def fetch(query: Query) -> Rows:
        look = _look(told)
        return paged(query, enumerate(look.last_errors if look else ()), _error_row)

    with section("Last errors"):
        return ServerTable(
            "Last errors",
            [
                Column("at", "When", "number"),
                Column("where", "Where"),
                Column("count", "How often", "number"),
                Column("text", "What"),
            ],
            fetch,
            row_key="key",
            empty="Nothing has gone wrong so far.",
            page_rows=PAGE_ROWS,
        )


def _error_row(numbered: tuple[int, ToldError]) -> Row:
    number, one = numbered
    return {
        "key": f"{number} {one.time_ms}",
        "at": formatting.clock(one.time_ms / 1000),
        "where": one.where,
        "count": formatting.count(one.count, "times") if one.count > 1 else "once",
        "text": one.text,
    }


def batches_table(told: Told) -> ServerTable:
    def fetch(query: Query) -> Rows:
        look = _look(told)
        rows = look.oldest if look else ()
        return paged(query, rows, _batch_row, keys={"age": lambda one: one.age_ms, "batches": lambda one: one.batches})

    with section("Batches that wait, by partition"):
        return ServerTable(
            "Batches that wait",
            [
                Column("partition", "Partition", "mono"),
                Column("leader", "Leader", "number"),
                Column("batches", "Batches", "number", sortable=True),
                Column("fill", "Fill of the last", "number"),
                Column("records", "Records in it", "number"),
                Column("age", "Age of the first", "number", sortable=True),
                Column("attempts", "Sent before"),
            ],
            fetch,
            row_key="partition",
            empty="Nothing waits: every record is on its way, or answered.",
            page_rows=PAGE_ROWS,
        )


def _batch_row(one: WaitingBatch) -> Row:
    return {
        "partition": one.name,
        "leader": f"broker {one.leader}" if one.leader >= 0 else "no leader",
        "batches": formatting.count(one.batches),
        "fill": f"{one.fill:.0%} of {formatting.size(one.room_bytes)}",
        "records": formatting.count(one.records),
        "age": formatting.milliseconds(one.age_ms),
        "attempts": f"{formatting.count(one.attempts)} times" if one.attempts else "no",
    }


def brokers_table(told: Told) -> ServerTable:
    def fetch(query: Query) -> Rows:
        look = _look(told)
        return paged(query, look.brokers if look else (), _broker_row)

    with section("Brokers"):
        return ServerTable(
            "Brokers of this producer",
            [
                Column("id", "Broker", "number"),
                Column("address", "Address", "mono"),
                Column("state", "Connection", "state"),
                Column("in_flight", "In flight", "number"),
                Column("sent", "Sent to it", "number"),
            ],
            fetch,
            row_key="id",
            empty="No broker is known to this producer yet: it asks when the first record is sent.",
            page_rows=PAGE_ROWS,
        )


def _broker_row(one: ReachedBroker) -> Row:
    # A broker to which nothing had to be sent needs no connection.
    state = ("●", "good", "open") if one.is_connected else ("○", "warn" if one.sent_bytes else "", "none")
    return {
        "id": str(one.id),
        "address": one.address,
        "state": state[2],
        "state_mark": state[0],
        "state_tone": state[1],
        "in_flight": f"{one.in_flight} of {one.in_flight_max} requests",
        "sent": formatting.size(one.sent_bytes),
    }


def topics_table(told: Told) -> ServerTable:
    def fetch(query: Query) -> Rows:
        look = _look(told)
        topics: Iterable[tuple[str, float, float]] = look.topics if look else ()
        return paged(query, topics, _topic_row)

    with section("Topics, by bytes"):
        return ServerTable(
            "Topics of this producer",
            [
                Column("topic", "Topic", "link"),
                Column("records", "Records", "number"),
                Column("size", "Bytes of batches", "number"),
            ],
            fetch,
            row_key="topic",
            empty="Nothing was sent yet.",
            page_rows=PAGE_ROWS,
        )


def _topic_row(found: tuple[str, float, float]) -> Row:
    topic, records, size = found
    return {
        "topic": topic,
        "topic_href": topic_address(topic),
        "records": formatting.count(records),
        "size": formatting.size(size),
    }

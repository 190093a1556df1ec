"""`make fuzz-broker`: a million mutated frames at a live broker.

The frames are requests of every API and version the broker speaks, with bytes flipped, cut, put in and overwritten with
numbers that decoders trip over; some have a size prefix that lies. All the while a well-behaved client writes and reads
on a connection of its own. In the end the broker must be alive and right: what the good client wrote is there, no
traceback was printed, memory is bounded.

The good client's topic is not named in the frames, and nothing in them is authorised to stop the broker: whatever else
they change (topics, groups, transactions) may happen.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from bench.fuzz_wire import filled, mutate
from headrace.broker import EmbeddedBroker
from headrace.broker.handlers import SUPPORTED
from headrace.wire.api import request_class
from headrace.wire.api.metadata import ApiVersionsRequest
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.frames import encode_request
from headrace.wire.layout import Record
from headrace.wire.records import encode

FRAMES_AHEAD = 3
"""Frames that go out before a response is awaited; a broken one ends the connection."""
PATIENCE_SECONDS = 0.05
_MARK = 0x5A17C0DE
REQUEST = b"".join(encode_request(ApiVersionsRequest(), 0, _MARK, "fuzz"))
RESPONSE = struct.pack(">ih", _MARK, 0)
MEMORY_GROWTH_MB_MAX = 150
GOOD_EVERY = 20  # connections
GOOD_TOPIC = "good"


@dataclass(slots=True)
class Report:
    """The counts of a run."""

    frames: int = 0
    connections: int = 0
    closed_by_broker: int = 0
    good_records: int = 0
    memory_mb_before: float = 0.0
    memory_mb_after: float = 0.0
    seconds: float = 0.0
    tracebacks: int = 0


def seeds() -> list[bytes]:
    """A request with all fields set for every API and version, and produce requests with valid batches."""
    frames = []
    for key, (first, last, _) in SUPPORTED.items():
        for version in range(first, last + 1):
            message = filled(request_class(key), version)
            frames.append(b"".join(encode_request(message, version, 7, "fuzz")))
    records = [Record(n, 1_700_000_000_000, b"key", b"value", (("h", b"v"),)) for n in range(3)]
    for codec in range(5):
        data = [PartitionProduceData(partition_index=0, records=bytes(encode(records, codec=codec)))]
        produce = ProduceRequest(
            acks=1, timeout_ms=100, topic_data=[TopicProduceData(name="text", partition_data=data)]
        )
        frames += [b"".join(encode_request(produce, version, 7, "fuzz")) for version in (3, 9, 12)] * 5
    return frames


def frames(rng: random.Random, corpus: list[bytes]) -> Iterator[bytes]:
    """Yield mutated frames; one in twenty has a wrong size prefix."""
    while True:
        seed = rng.choice(corpus)
        body = mutate(seed[4:], rng)
        if rng.random() < 0.05:
            yield rng.choice((seed[:4], rng.randbytes(4), b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")) + body
        else:
            yield len(body).to_bytes(4, "big") + body


def attack(port: int, stream: Iterator[bytes], count: int) -> tuple[int, bool]:
    """Send up to `count` frames over one connection; return how many were sent, and whether the broker closed it.

    A few at a time, then a valid request: its response shows that the broker has handled those before.
    """
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
        try:
            while sent < count:
                burst = [next(stream) for _ in range(min(FRAMES_AHEAD, count - sent))]
                sent += len(burst)
                connection.sendall(b"".join([*burst, REQUEST]))
                response = b""
                while RESPONSE not in response:
                    data = connection.recv(1 << 20)
                    if not data:
                        return sent, True
                    response = response[-len(RESPONSE) :] + data
        except TimeoutError:  # a fetch that may wait, a size prefix that promised more
            return sent, False
        except OSError:
            return sent, True
    return sent, False


class GoodClient:
    """Writes records and reads them back continuously."""

    def __init__(self, bootstrap: str) -> None:
        from tests.support.peers.connection import Connection

        self._connection = Connection(bootstrap)
        self.written = 0

    def turn(self) -> None:
        record = Record(0, 1_700_000_000_000, None, b"%d" % self.written, ())
        response = self._connection.produce(GOOD_TOPIC, bytes(encode([record])))
        if response.error_code or response.base_offset != self.written:
            raise SystemExit(f"the valid client got {response} for record {self.written}")
        self.written += 1

    def check(self) -> None:
        from tests.support.peers.connection import batches_of

        offset = 0
        while offset < self.written:
            response = self._connection.fetch(GOOD_TOPIC, offset=offset)
            for batch in batches_of(response):
                for record in batch.records():
                    if record.offset >= offset:
                        assert record.value == b"%d" % record.offset, record
                        offset = record.offset + 1


def run(broker: EmbeddedBroker, count: int, seed: int) -> Report:
    """Attack a running broker."""
    from bench.broker import resident_mb, say

    rng = random.Random(seed)
    stream = frames(rng, seeds())
    broker.create_topic(GOOD_TOPIC)
    good = GoodClient(broker.bootstrap)
    pid = broker.pid
    assert pid is not None
    port = int(broker.bootstrap.rsplit(":", 1)[1])
    for _ in range(200):  # every module is loaded, every codec has run: now memory should stay where it is
        attack(port, stream, 20)
    report = Report(memory_mb_before=resident_mb(pid))
    started = time.perf_counter()
    while report.frames < count:
        sent, closed = attack(port, stream, rng.choice((1, 5, 50, 500)))
        report.frames += sent
        report.closed_by_broker += closed
        report.connections += 1
        if report.connections % GOOD_EVERY == 0:
            good.turn()
            report.tracebacks = max(report.tracebacks, broker.log_text.count("Traceback"))  # only its end is kept
            if sys.stderr.isatty():
                say(f"{report.frames} of {count} frames")
    good.check()
    report.good_records = good.written
    report.seconds = time.perf_counter() - started
    report.memory_mb_after = resident_mb(pid)
    report.tracebacks = max(report.tracebacks, broker.log_text.count("Traceback"))
    say("")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr)
    with EmbeddedBroker() as broker:
        report = run(broker, options.frames, seed)
        if report.tracebacks:
            print(broker.log_text, file=sys.stderr)
    print(json.dumps(asdict(report), indent=2))
    grown = report.memory_mb_after - report.memory_mb_before
    return 0 if not report.tracebacks and grown < MEMORY_GROWTH_MB_MAX else 1


if __name__ == "__main__":
    sys.exit(main())

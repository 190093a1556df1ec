"""A group whose members are processes of several clients, with constant traffic: who has committed which offsets.

with SpanGroup(broker, "consumer", partitions=8, jars=jars) as group:
    killed = group.add("headrace")
    group.wait_for_owners()                  every partition makes progress
    killed.kill()
    group.wait_for_owners()                  and again, at the latest after the session timeout
    group.finish()                           every record is in exactly one committed span
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple, Self

from headrace import Consumer, Producer, TopicPartition
from tests.support.peers.broker import Broker
from tests.support.peers.franz_go import franz_go_program
from tests.support.peers.java import SHORT_LIVED, java_command
from tests.support.topics import unique
from tests.support.waiting import eventually

SESSION_SECONDS = 4
PROGRESS_SECONDS_MAX = 30
"""Until all partitions make progress: the session timeout, a rebalance, and a JVM that starts on a busy machine."""
SEND_PAUSE_SECONDS = 0.005
JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


class Span(NamedTuple):
    partition: int
    start: int
    end: int


class SpanMember:
    """A member in a process, and what it has printed."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.read: list[Span] = []
        self.committed: list[Span] = []
        self.is_killed = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as we do
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, encoding="utf-8")
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # a member may be killed while it prints
                self._take(line)

    def _take(self, line: str) -> None:
        event, *numbers = line.split()
        if event in ("read", "committed"):
            (self.read if event == "read" else self.committed).append(Span(*map(int, numbers)))

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.is_killed = True
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PROGRESS_SECONDS_MAX)
        self._thread.join(PROGRESS_SECONDS_MAX)

    def check_alive(self) -> None:
        if not self.is_killed and self._process.poll() is not None:
            self._errors.seek(0)
            raise AssertionError(f"{self.name} ended: {self._errors.read()[-3000:].decode(errors='replace')}")


class JavaSpanMember(SpanMember):
    """Java's VerifiableConsumer."""

    def __init__(self, name: str, command: list[str]) -> None:
        self._pending: dict[int, Span] = {}
        super().__init__(name, command)

    def _take(self, line: str) -> None:
        event = json.loads(line) if line.startswith("{") else {}
        rows = event.get("partitions", [])
        if event.get("name") == "records_consumed":
            for row in rows:
                partition = row["partition"]
                start = self._pending[partition].start if partition in self._pending else row["minOffset"]
                self._pending[partition] = Span(partition, start, row["maxOffset"] + 1)
            self.read += self._pending.values()
        elif event.get("name") == "offsets_committed" and event["success"]:
            self.committed += self._pending.values()
            self._pending.clear()
        elif event.get("name") == "partitions_revoked":
            for row in rows:
                self._pending.pop(row["partition"], None)


class SpanGroup:
    """A topic with constant traffic, and the members of a group that reads it."""

    def __init__(self, broker: Broker, protocol: str, partitions: int, jars: Path) -> None:
        self._broker = broker
        self._protocol = protocol
        self._jars = jars
        self._group = unique("group")
        self._topic = broker.create_topic(unique("spans"), partitions)
        self._names = [TopicPartition(self._topic, number) for number in range(partitions)]
        self._members: list[SpanMember] = []
        self._ended = threading.Event()
        self._sent = [0] * partitions
        self._traffic = threading.Thread(target=self._send, daemon=True)
        self._watcher = Consumer(bootstrap_servers=broker.bootstrap, group_id=self._group, enable_auto_commit=False)

    def __enter__(self) -> Self:
        self._traffic.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end_traffic()
        for member in self._members:
            member.close()
        self._watcher.close()

    def _send(self) -> None:
        with Producer(bootstrap_servers=self._broker.bootstrap, linger_ms=5) as producer:
            while not self._ended.wait(SEND_PAUSE_SECONDS):
                for name in self._names:
                    producer.send(self._topic, b"v", partition=name.partition)
                    self._sent[name.partition] += 1

    def _end_traffic(self) -> None:
        self._ended.set()
        self._traffic.join(PROGRESS_SECONDS_MAX)

    def add(self, client: str) -> SpanMember:
        """Start a member: of headrace, librdkafka, aiokafka, franz-go or java."""
        bootstrap, group, topic = self._broker.bootstrap, self._group, self._topic
        if client == "java":
            arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group]
            arguments += ["--reset-policy", "earliest"]
            if self._protocol == "consumer":
                arguments += ["--group-protocol", "consumer"]
            else:
                arguments += ["--session-timeout", str(SESSION_SECONDS * 1000)]
                arguments += ["--assignment-strategy", JAVA_ASSIGNORS[self._protocol]]
            tool = "org.apache.kafka.tools.VerifiableConsumer"
            member: SpanMember = JavaSpanMember(client, java_command(self._jars, tool, *arguments, options=SHORT_LIVED))
        elif client == "franz-go":
            program = str(franz_go_program())
            member = SpanMember(client, [program, "member", bootstrap, group, topic, self._protocol])
        else:
            module = [sys.executable, "-m", "tests.support.span_member"]
            member = SpanMember(client, [*module, client, bootstrap, group, topic, self._protocol])
        self._members.append(member)
        return member

    def wait_for_work(self, *members: SpanMember) -> None:
        """Wait until each of the members commits something that is sent from now on."""
        before = [len(member.committed) for member in members]

        def has_worked() -> bool:
            self._check_alive()
            return all(len(member.committed) > count for member, count in zip(members, before, strict=True))

        names = ", ".join(member.name for member in members)
        eventually(f"commits of {names}", has_worked, PROGRESS_SECONDS_MAX)

    def wait_for_owners(self, seconds_max: float = PROGRESS_SECONDS_MAX) -> None:
        """Wait until all records that were sent before this call are committed: each partition has an owner."""
        ends = list(self._sent)
        eventually("progress of all partitions", lambda: self._is_committed(ends), seconds_max)

    def _is_committed(self, ends: list[int]) -> bool:
        self._check_alive()
        committed = self._watcher.committed(self._names)
        return all(
            name in committed and committed[name].offset >= end for name, end in zip(self._names, ends, strict=True)
        )

    def _check_alive(self) -> None:
        for member in self._members:
            member.check_alive()

    def finish(self) -> None:
        """End the traffic; check that every record is in exactly one committed span."""
        self._end_traffic()
        self.wait_for_owners()
        for member in self._members:
            member.close()
        spans: defaultdict[int, list[tuple[Span, str]]] = defaultdict(list)
        for member in self._members:
            for span in member.committed:
                spans[span.partition].append((span, member.name))
        # A member may be killed after a commit, and before it prints it.
        unprinted = {span for member in self._members if member.is_killed for span in member.read}
        for partition, end in enumerate(self._sent):
            position = 0
            for span, name in sorted(spans[partition]):
                while position < span.start:
                    position = self._end_of_unprinted(unprinted, partition, position)
                assert span.start == position, f"partition {partition}: {name} committed {span} again, after {position}"
                position = span.end
            while position < end:
                position = self._end_of_unprinted(unprinted, partition, position)
            assert position == end

    @staticmethod
    def _end_of_unprinted(unprinted: set[Span], partition: int, position: int) -> int:
        ends = [span.end for span in unprinted if span.partition == partition and span.start == position]
        assert ends, f"partition {partition}: nobody committed {position}"
        return ends[0]

"""A Java writer for a chaos run: Kafka's VerifiableProducer, which prints the result of each record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from headrace.verify import Phase, SendOp
from tests.support.chaos_clients import DELIVERY_MS, REQUEST_MS
from tests.support.chaos_writers import STOP_SECONDS_MAX, Setting
from tests.support.peers import java
from tests.support.peers.real_kafka import GUARD

VALUE_PREFIX = 7  # values are 7.0, 7.1 and so on
KEYS = 12
CONFIG = {
    "enable.idempotence": "true",
    "retries": "2147483647",
    "linger.ms": "2",
    "request.timeout.ms": str(REQUEST_MS),
    "delivery.timeout.ms": str(DELIVERY_MS),
}


class JavaWriter:
    """Kafka's VerifiableProducer, as a separate process."""

    name = "java"

    def __init__(self, jars: Path, folder: Path, setting: Setting, rate_per_s: int, seconds: float) -> None:
        count = int(rate_per_s * seconds)
        self.acknowledged = 0
        self._setting = setting
        # It prints results only, not sends: all values that it may send count as sent.
        setting.history.add(*(self._send(Phase.INVOKE, f"{VALUE_PREFIX}.{number}") for number in range(count)))
        config = folder / "verifiable.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in CONFIG.items()))
        arguments = {
            "--bootstrap-server": setting.bootstrap,
            "--topic": setting.topic,
            "--max-messages": count,
            "--throughput": rate_per_s,
            "--acks": -1,
            "--producer.config": config,
            "--value-prefix": VALUE_PREFIX,
            "--repeating-keys": KEYS,
        }
        flat = [str(part) for pair in arguments.items() for part in pair]
        main = "org.apache.kafka.tools.VerifiableProducer"
        self._log_file = (folder / "verifiable.log").open("wb")
        self._process = subprocess.Popen(
            [*GUARD, *java.java_command(jars, main, *flat, options=java.SHORT_LIVED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            encoding="utf-8",
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, name=self.name, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue  # some of its last lines are not JSON
            if (operation := self._result(json.loads(line))) is not None:
                self._setting.history.add(operation)

    def _result(self, fields: dict[str, object]) -> SendOp | None:
        if fields["name"] == "producer_send_success":
            self.acknowledged += 1
            partition, offset = int(str(fields["partition"])), int(str(fields["offset"]))
            known = offset if offset >= 0 else None
            return self._send(Phase.OK, str(fields["value"]), partition, known)
        if fields["name"] == "producer_send_error":
            return self._send(Phase.INFO, str(fields["value"]))
        return None

    def _send(self, phase: Phase, value: str, partition: int | None = None, offset: int | None = None) -> SendOp:
        return SendOp(phase, self.name, value, self._setting.topic, partition, offset)

    def stop(self) -> None:
        """Stop it, and read the rest of its output."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_SECONDS_MAX)
            self._thread.join(STOP_SECONDS_MAX)
            for pipe in (self._process.stdin, self._process.stdout, self._log_file):
                assert pipe is not None
                pipe.close()

"""Apache Kafka, one node in a separate process.

    start → running ─ kill, stop ─► dead ─ restart ─► running … → remove

Ports and data stay the same from the first start to `remove`.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.peers import broker, class_archive, java
from tests.support.waiting import eventually

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30
LOG_TAIL_BYTES = 4000
_FIRST_RESPONSE_SECONDS_MAX = 10

# Below the ports that systems hand to outgoing connections: a client that keeps dialling a dead broker on one
# of those could be given that very port, and be connected to itself.
_PORTS = range(20000, 32000)

# Runs a command, and kills it when the standard input is closed, also if the test run is killed.
GUARD = ("sh", "-c", 'exec 3<&0; { cat <&3 >/dev/null; kill -9 $$; } & exec "$@" </dev/null 3<&-', "sh")

# It has little to do, and a minute to live: the quick compiler will do.
_OPTIONS = ("-Xmx768m", "-Xms128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=500
group.share.min.heartbeat.interval.ms=200
group.share.heartbeat.interval.ms=500
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
# Samples may be old, and nothing is to vanish under a test.
log.retention.ms=-1
# A broker that was killed may come back only when its last session is over.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""


def write_class_archive(jars: Path) -> None:
    """Write an archive of Kafka's classes, which all JVMs with these jars use, unless there is one."""

    def write(option: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kafka = RealKafka(jars, Path(folder) / "kafka", jvm_options=(*_OPTIONS, option))
            try:
                kafka.start()
                kafka.create_topic("archive")
                kafka.stop()
            finally:
                kafka.remove()

    class_archive.write_archive(java.archive_name(jars), jars, write)


class RealKafka(broker.Broker):
    """A broker of Apache Kafka: the `Broker` interface, and Kafka's tools to inspect it."""

    def __init__(
        self,
        jars: Path,
        data_dir: Path,
        properties: Mapping[str, str] | None = None,
        jvm_options: tuple[str, ...] | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.jars = jars
        self.data_dir = data_dir
        if jvm_options is None:
            write_class_archive(jars)
        self._jvm_options = jvm_options or _OPTIONS
        self._is_3 = jars.name.startswith("kafka-3.")
        self._cluster_id = cluster_id or new_cluster_id()
        self.port, self.controller_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._logs = data_dir / "logs"
        self._output = data_dir / "server.log"
        self._config = data_dir / "server.properties"
        settings = _PROPERTIES.format(port=self.port, controller_port=self.controller_port, logs=self._logs)
        settings += "".join(f"{name}={value}\n" for name, value in (properties or {}).items())
        data_dir.mkdir(parents=True)
        self._config.write_text(settings)

    def set(self, **properties: str) -> None:
        """Settings for the next start, with _ for the dots of their names."""
        with self._config.open("a") as file:
            file.writelines(f"{name.replace('_', '.')}={value}\n" for name, value in properties.items())

    def add_listener(self, name: str, protocol: str, options: Iterable[str], host: str = "127.0.0.1") -> str:
        """Add a listener, and lines of options, for the next start; returns its address."""
        (port,) = free_ports(1)
        address = f"{host}:{port}"
        added = {
            "listeners": f"{name}://{address}",
            "advertised.listeners": f"{name}://{address}",
            "listener.security.protocol.map": f"{name}:{protocol}",
        }
        lines = []
        for line in self._config.read_text().splitlines():
            more = added.get(line.partition("=")[0])
            lines.append(line if more is None else f"{line},{more}")
        self._config.write_text("\n".join([*lines, *options, ""]))
        return address

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the broker, the first time with empty logs, and wait until it responds."""
        if not self._logs.exists():
            arguments = (f"--cluster-id={self._cluster_id}", f"--config={self._config}")
            self._run("kafka.tools.StorageTool", "format", *arguments)
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*GUARD, *java.java_command(self.jars, "kafka.Kafka", str(self._config), options=self._jvm_options)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a separate process group: Ctrl-C does not reach it
            )
        try:
            eventually("a response from Kafka", self._is_responding, START_SECONDS_MAX)
        except TimeoutError as error:
            tail = self.log_tail()
            self.kill()
            raise TimeoutError(f"{error}; its log ends:\n{tail}") from None
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stop the process and delete its data."""
        self.kill()
        if self.data_dir.exists():
            shutil.rmtree(self.data_dir)

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        return broker.create_topic(self.bootstrap, name, partitions, configs)

    def dump_log(self, topic: str, partition: int = 0) -> str:
        """Return the output of DumpLogSegments: a line for each batch and each record, with payloads."""
        segments = sorted(self._logs.glob(f"{topic}-{partition}/*.log"))
        main = "kafka.tools.DumpLogSegments" if self._is_3 else "org.apache.kafka.tools.DumpLogSegments"
        return self._run(main, "--deep-iteration", "--print-data-log", "--files", ",".join(map(str, segments)))

    def console_consume(
        self,
        topic: str,
        *,
        records_max: int | None = None,
        isolation: str = "read_uncommitted",
        idle_seconds: float = 5,
        properties: Iterable[str] = (),
    ) -> list[str]:
        """Return the output of the console consumer for a topic from its start, a line for each record.

        Timestamp, partition, offset, headers, key and value are separated by tabs. It ends after `records_max` records,
        or after a time-out; fewer than `records_max` are an error.
        """
        command = [
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", self.bootstrap, "--topic", topic, "--from-beginning"),
            *("--isolation-level", isolation),
            *("--timeout-ms", str(int(idle_seconds * 1000))),
        ]
        printed = [f"print.{name}=true" for name in ("timestamp", "partition", "offset", "headers", "key", "value")]
        for setting in (*printed, *properties):
            command += ["--property" if self._is_3 else "--formatter-property", setting]
        if records_max is not None:
            command += ["--max-messages", str(records_max)]
        *lines, _ = self._run(*command).split("\n")
        assert records_max is None or len(lines) == records_max, lines
        return lines

    def log_tail(self) -> str:
        """Return the last warnings and errors of the server."""
        return self._output.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _run(self, main: str, *args: str) -> str:
        return java.run(java.java_command(self.jars, main, *args, options=java.SHORT_LIVED))

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS_MAX)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its guard, and itself if it would not end
        process.wait(STOP_SECONDS_MAX)
        assert process.stdin is not None
        process.stdin.close()

    def _is_responding(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"Kafka ended with {self._process.returncode} at its start:\n{self.log_tail()}")
        return responds_to_api_versions(self.port)


def new_cluster_id() -> str:
    """Return a random id in Kafka's format."""
    return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()


def responds_to_api_versions(port: int) -> bool:
    """Return whether a broker on loopback responds to ApiVersions."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_FIRST_RESPONSE_SECONDS_MAX) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(connection.recv(4)) > 0
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Return free ports on loopback."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            # As servers do: otherwise a recent connection makes a port look used.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"only {len(ports)} of {count} ports from {_PORTS.start} to {_PORTS.stop} are free")

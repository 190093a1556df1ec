"""A broker for tests, demos and small jobs that lives as long as a with block.

    with EmbeddedBroker() as broker:
        Producer(bootstrap_servers=broker.bootstrap)

    new ── start ─► running ── stop, kill ─► down ── start, restart ─► running … ── close ─► closed

By default it is a separate process that ends with this one, however this one ends. With `in_process=True` it is a
thread (runners.py). Port and data are kept from the first start until `close`, which removes the data unless they are
in a named folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.broker import control
from headrace.broker.broker_options import BROKER_OPTIONS, resolve
from headrace.broker.control import RunningBroker
from headrace.broker.degrader import Degrader
from headrace.broker.ports import free_port, is_taken
from headrace.broker.runners import ProcessRunner, Runner, ThreadRunner
from headrace.errors import ClosedError, ConfigError, IllegalStateError

if TYPE_CHECKING:
    from headrace.config.option_types import BrokerOptions

PORT_ATTEMPTS_MAX = 5
"""Another process may take a free port before the broker listens: this many ports are tried."""

REGISTRY_LISTENER = "headrace.schema.registry.listener"

# Unlike in production, the members of a test's group do not join over several seconds.
_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}


class EmbeddedBroker:
    """A standalone broker on the loopback interface."""

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        in_process: bool = False,
        degraded: bool = False,
        schema_registry: bool = False,
        **options: Unpack[BrokerOptions],
    ) -> None:
        """Options of the broker by name in `config`, or as keywords: `num_partitions=3`.

        `port=0` picks a free port. `degraded=True` puts a `Degrader` between clients and broker: see `degrader`.
        `schema_registry=True` also starts a schema registry on a free port: see `schema_registry_url`.
        """
        self._options: dict[str, object] = {**_DEFAULTS, **(config or {}), **BROKER_OPTIONS.named(options)}
        if "listeners" in self._options:
            self._options["listeners"] = _with_ports(self._options["listeners"])
        if schema_registry:
            self._options.setdefault(REGISTRY_LISTENER, f"127.0.0.1:{free_port()}")
        self._port_is_ours = port == 0 and "listeners" not in self._options
        self._port = port
        self._in_process = in_process
        self._degraded = degraded
        self._removes_data = data_dir is None
        folder = tempfile.mkdtemp(prefix="headrace-broker-") if data_dir is None else data_dir
        self.data_dir: Path = Path(folder).absolute()
        self._remove_data = weakref.finalize(self, _remove, self.data_dir, os.getpid() if data_dir is None else -1)
        self._runner: Runner | None = None
        self._ready: RunningBroker | None = None
        self._degrader: Degrader | None = None
        self.faults: RemoteFaults = RemoteFaults(self)
        try:
            resolve(("argument", self._options))  # raise errors here, not in the other process
        except ConfigError:
            self._remove_data()
            raise

    # -- lifecycle -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker and wait until it is ready; raise with the reason if it fails."""
        if not self._remove_data.alive:
            raise ClosedError("this broker is closed: create another one")
        if self.is_running:
            raise IllegalStateError(f"the broker is already running on {self.bootstrap}")
        self._forget()
        if self._degraded and self._degrader is None:
            self._degrader = Degrader().start()
        for attempt in range(PORT_ATTEMPTS_MAX):
            try:
                self._start_once()
                break
            except IllegalStateError:
                lost_the_race = self._port_is_ours and self._ready is None and is_taken("127.0.0.1", self._port)
                if not lost_the_race or attempt == PORT_ATTEMPTS_MAX - 1:
                    raise
                self._port = 0
        self._port_is_ours = False  # clients know it from now on
        return self

    def _start_once(self) -> None:
        self._port = self._port or free_port()
        options = {"listeners": f"PLAINTEXT://127.0.0.1:{self._port}", **self._options, "log.dirs": str(self.data_dir)}
        if self._degrader is not None:
            options["advertised.listeners"] = f"PLAINTEXT://{self._degrader.address}"
            self._degrader.connect_to(f"127.0.0.1:{self._port}")  # other brokers may connect before it is ready
        if self._ready is not None and (url := self._ready.schema_registry) is not None:
            options[REGISTRY_LISTENER] = url.removeprefix("http://")  # as before: clients know it
        runner = ThreadRunner(options) if self._in_process else ProcessRunner(options, remove_data=self._removes_data)
        self._ready = runner.start()
        self._runner = runner
        if self._degrader is not None:
            self._degrader.connect_to(next(iter(self._ready.listeners.values())))

    def stop(self) -> None:
        """Stop the broker cleanly. Data and port are kept. Idempotent."""
        if not self._in_process:
            with suppress(IllegalStateError, ProcessLookupError):  # it is not running
                self.resume()
        if (runner := self._forget()) is not None:
            runner.stop()

    def kill(self) -> None:
        """Kill the broker (kill -9). Data and port are kept. Idempotent."""
        if self._in_process:
            raise IllegalStateError("a broker in a thread cannot be killed: leave out in_process=True")
        if (runner := self._forget()) is not None:
            runner.kill()

    def pause(self) -> None:
        """Suspend the broker (SIGSTOP): connections stay open without responses, until `resume`, `stop` or `kill`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the broker (SIGCONT) after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._in_process:
            raise IllegalStateError("a broker in a thread cannot be paused: leave out in_process=True")
        if self.pid is None:
            raise IllegalStateError("the broker is not running")
        os.kill(self.pid, number)

    def restart(self) -> None:
        """Start the broker again with the same port and data, after stopping it if it is running."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker and remove its data, unless they are in a named folder."""
        try:
            self.stop()
        finally:
            if self._degrader is not None:
                self._degrader.close()
                self._degrader = None
            self._remove_data()

    def __enter__(self) -> Self:
        try:
            return self if self.is_running else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- state -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._runner is not None and self._runner.is_alive

    @property
    def bootstrap(self) -> str:
        """host:port for `bootstrap.servers`; it does not change with restarts."""
        if self._ready is None:
            raise IllegalStateError("the broker has not been started yet")
        return self._ready.bootstrap

    @property
    def schema_registry_url(self) -> str:
        """The URL for `schema.registry.url`; it does not change with restarts."""
        if self._ready is None or self._ready.schema_registry is None:
            raise IllegalStateError(
                "there is no schema registry: use EmbeddedBroker(schema_registry=True), and start the broker"
            )
        return self._ready.schema_registry

    @property
    def pid(self) -> int | None:
        """The process id, or None if the broker is not running."""
        return self._ready.pid if self._ready is not None and self.is_running else None

    @property
    def degrader(self) -> Degrader:
        """The proxy between clients and this broker, which can degrade the network."""
        if self._degrader is None:
            raise IllegalStateError("there is no degrader: use EmbeddedBroker(degraded=True), and start it")
        return self._degrader

    @property
    def log_text(self) -> str:
        """The end of the log of its process since the start: warnings and errors."""
        return "" if self._runner is None else self._runner.log_text

    def wait(self, seconds_max: float) -> int:
        """Wait until the process exits, for example after an injected crash; return its exit code."""
        if self._runner is None:
            raise IllegalStateError("the broker is not running")
        return self._runner.wait(seconds_max)

    # -- operations ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the output of `headrace broker status`."""
        status: dict[str, Any] = self.call("status")
        return status

    def start_schema_registry(self) -> str:
        """Start a schema registry in the running broker, on a free port, unless it has one; return its URL."""
        url = str(self.call("schema-registry.start", listener=f"127.0.0.1:{free_port()}"))
        assert self._ready is not None
        self._ready = replace(self._ready, schema_registry=url)
        return url

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic without a client; return its name when it exists."""
        return str(self.call("topics.create", name=name, partitions=partitions, configs=dict(configs or {})))

    def delete_topic(self, name: str) -> bool:
        """Delete a topic without a client; return whether it existed."""
        return bool(self.call("topics.delete", name=name))

    def call(self, op: str, **arguments: Any) -> Any:
        """Call an operation of the control socket (control.py)."""
        if self._ready is None or not self.is_running:
            raise IllegalStateError("the broker is not running")
        return control.call(self._ready.control, op, **arguments)

    def _forget(self) -> Runner | None:
        runner, self._runner = self._runner, None
        return runner


def _with_ports(listeners: object) -> object:
    """Replace port 0 in listeners by a free port that does not change with restarts."""
    texts = listeners.split(",") if isinstance(listeners, str) else listeners
    if not isinstance(texts, list | tuple):
        return listeners  # invalid, rejected with the other options
    return [f"{text[:-1]}{free_port()}" if str(text).endswith(":0") else text for text in texts]


def _remove(folder: Path, owner_pid: int) -> None:
    """Remove a folder, unless this process is a fork of the one that created it."""
    if os.getpid() == owner_pid:
        shutil.rmtree(folder, ignore_errors=True)


class RemoteFaults:
    """The injected faults of the broker (faults.py), by its control socket."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = weakref.ref(broker)

    def inject(
        self,
        *,
        api: str | int | None = None,
        topic: str | None = None,
        client_id: str | None = None,
        error: str | int | None = None,
        delay_ms: float = 0,
        drop: bool = False,
        close: bool = False,
        crash: bool = False,
        when: str = "before",
        count: int | None = None,
        probability: float = 1.0,
        seed: int | None = None,
    ) -> InjectedFault:
        """Inject a fault; as a context manager, until the end of the block.

        Requests: all of an API, by name or key; `topic` and `client_id` (shell patterns) restrict them.
        Effect: `error`, the name of a code; `drop`, no response; `close` the connection; `crash` the broker;
        `delay_ms` before it, or alone. `when="after"` executes the request and affects only the response.
        Frequency: `count` times, or with a `probability` (reproducible with a `seed`).
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        return InjectedFault(self, self.call("inject", **arguments)["id"])

    def list(self) -> list[dict[str, Any]]:
        """Return all faults that were not removed, with their `hits`."""
        rules: list[dict[str, Any]] = self.call("list")
        return rules

    def remove(self, fault_id: int) -> bool:
        """Remove a fault; return whether it existed."""
        return bool(self.call("remove", id=fault_id))

    def clear(self) -> int:
        """Remove all faults; return their number."""
        return int(self.call("clear"))

    @property
    def is_available(self) -> bool:
        """Whether the broker is running."""
        broker = self._broker()
        return broker is not None and broker.is_running

    def call(self, op: str, **arguments: Any) -> Any:
        broker = self._broker()
        assert broker is not None, "the broker was garbage-collected before its faults"
        return broker.call(f"faults.{op}", **arguments)


class InjectedFault:
    """An injected fault."""

    def __init__(self, faults: RemoteFaults, fault_id: int) -> None:
        self._faults = faults
        self.id = fault_id

    @property
    def hits(self) -> int:
        """The number of affected requests."""
        return next((rule["hits"] for rule in self._faults.list() if rule["id"] == self.id), 0)

    def remove(self) -> bool:
        return self._faults.remove(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._faults.is_available:
            self.remove()

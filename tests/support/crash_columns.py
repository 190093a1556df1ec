"""The columns of the crash matrix: queries of many cells are held at their failpoints, and the fault hits all at once.

    lead every cell to its failpoint → the fault → let go → start again until done → one more batch → compare

A driver that is killed dies for all of them, and so does a broker: a column costs as much as its slowest cell, not as
much as all of them together.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.crash_cells import (
    BROKER,
    DRIVER,
    EXECUTOR,
    EXPIRY,
    LEADER,
    PROCESS,
    RETRY,
    SHORT_TRANSACTION_MS,
    SPECULATIVE,
    ZOMBIE,
    Cell,
    Outcome,
)
from tests.support.peers import java
from tests.support.peers.broker import Broker
from tests.support.spark_cluster import StandaloneCluster
from tests.support.spark_driver import SparkDriver
from tests.support.waiting import eventually

GROUP_MAX = 6
"""Queries that are started at once: two cores have to get them somewhere."""
STARTS_MAX = 4
REACH_SECONDS_MAX = 180
EXPIRY_SECONDS_MAX = 60
EXECUTORS_SECONDS_MAX = 60
JAVA_IDLE_MS = 4000
CLUSTER_CORES = 24
SPECULATION = {
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__multiplier": "1.01",
    "spark__speculation__quantile": "0.3",
    "spark__speculation__minTaskRuntime": "300ms",
}
EXECUTORS = {"spark__executor__memory": "768m", "spark__task__maxFailures": "8"}


class Column:
    """One fault on one broker, at many places."""

    def __init__(
        self, fault: str, broker: Broker, broker_name: str, folder: Path, jars: Path, say: Callable[[str], None]
    ) -> None:
        self._fault, self._broker, self._name = fault, broker, broker_name
        self._folder, self._jars, self._say = folder, jars, say
        self._prefix = f"{fault.replace(' ', '-')}-{broker_name}"

    def run(self, places: Sequence[str]) -> list[Outcome]:
        """All cells; what goes wrong with one of them is in its outcome."""
        began = time.monotonic()
        cells = [
            Cell(self._fault, place, self._broker, self._name, self._folder, f"{self._prefix}-{number}")
            for number, place in enumerate(places)
        ]
        self._say(f"{self._fault} on {self._name}: {len(cells)} cells")
        {
            EXECUTOR: self._executor_killed,
            DRIVER: self._driver_killed,
            BROKER: self._broker_restarted,
            EXPIRY: self._transaction_expired,
            SPECULATIVE: self._speculative_attempt,
            RETRY: self._stage_retry,
            ZOMBIE: self._zombie_driver,
            PROCESS: self._process_changes,
            LEADER: self._leader_killed,
        }[self._fault](cells)
        self._judge(cells)
        bad = [f"{cell.place}: {cell.outcome.verdict}" for cell in cells if cell.outcome.verdict]
        self._say(
            f"{self._fault} on {self._name}: {len(cells) - len(bad)} of {len(cells)} cells are clean, "
            f"{time.monotonic() - began:.0f} s" + "".join(f"\n    {one}" for one in bad)
        )
        return [cell.outcome for cell in cells]

    # -- faults ----------------------------------------------------------------------------------

    def _executor_killed(self, cells: list[Cell]) -> None:
        """All executors of the query's application, JVM and Python workers. Workers of the cluster start others."""
        with self._cluster() as cluster, self._driver("executors", cluster.url, **EXECUTORS) as driver:
            self._hold(driver, cells)
            assert cluster.kill_executors() > 0
            self._let_go(cells)
            eventually("new executors", lambda: cluster.executors() or None, EXECUTORS_SECONDS_MAX)
            self._end(driver, cells)
            self._go_on(driver, cells)

    def _driver_killed(self, cells: list[Cell]) -> None:
        with self._driver("heir") as heir:
            with self._driver("victim") as victim:
                self._hold(victim, cells)
                victim.kill()
            self._go_on(heir, cells)

    def _broker_restarted(self, cells: list[Cell]) -> None:
        with self._driver("driver") as driver:
            self._hold(driver, cells)
            self._broker.kill()
            self._let_go(cells)
            self._broker.restart()
            self._end(driver, cells)
            self._go_on(driver, cells)

    def _transaction_expired(self, cells: list[Cell]) -> None:
        """The broker's own limit is short as well: the driver's transactions expire like those of tasks."""
        with self._driver("driver") as driver:
            # What begin.abort is to find must not have expired when it comes: it is led there last, and alone.
            hurried = [cell for cell in cells if cell.place == "begin.abort"]
            self._hold(driver, [cell for cell in cells if cell not in hurried], SHORT_TRANSACTION_MS)
            self._hold(driver, hurried, SHORT_TRANSACTION_MS)
            self._wait_until_expired(cells)
            self._let_go(cells)
            self._end(driver, cells)
            self._go_on(driver, cells, SHORT_TRANSACTION_MS)

    def _speculative_attempt(self, cells: list[Cell]) -> None:
        """A task is held for ever: only its twin can get the batch any further. Then the commit dies where it is to.

        The last driver makes no twins: one that loses may begin a transaction when its batch is committed already, and
        that is open until the next commit.
        """
        with self._cluster() as cluster, self._driver("twins", cluster.url, **EXECUTORS, **SPECULATION) as driver:
            for group in _groups(cells):
                self._lead(driver, group)
                for cell in group:
                    slow = cell.place if cell.place.startswith("task.") else "task.sent"
                    killed = "" if cell.place == slow else f", {cell.place}=kill"
                    cell.start(driver, f"{_beside(cell)}{slow}=hold{killed}")
                self._end(driver, group)
                for cell in group:
                    cell.outcome.is_reached = cell.has_reached()
            self._go_on(driver, cells)
        with self._driver("heir") as heir:
            self._go_on(heir, cells)

    def _stage_retry(self, cells: list[Cell]) -> None:
        """A task dies, what it is to read again is gone: the stage is run again while another task of it still runs."""
        with self._driver("retries") as driver:
            for group in _groups(cells):
                self._lead(driver, group)
                for cell in group:
                    killed = "" if cell.place.startswith("task.") else f", {cell.place}=kill"
                    dying, late = _dying_and_late(cell)
                    cell.start(driver, f"{_beside(cell)}{dying}=hold, {late}=hold{killed}")
                for cell in group:
                    self._wait_for(driver, cell, _dying_and_late(cell))
                for path in driver.local_dir.rglob("shuffle_*.*"):
                    path.unlink()
                for cell in group:
                    cell.order("kill", _dying_and_late(cell)[0])
                self._end(driver, group)
                for cell in group:
                    cell.order("", _dying_and_late(cell)[1])
                    cell.outcome.is_reached = cell.has_reached() and driver.stage_retries(cell.run) > 0
            self._go_on(driver, cells)

    def _zombie_driver(self, cells: list[Cell]) -> None:
        """It is held; another one takes over and goes on. Then the first one wakes up."""
        with self._driver("heir") as heir, self._driver("zombie") as zombie:
            self._hold(zombie, cells)
            runs = [cell.run for cell in cells]
            releases = [cell.release() for cell in cells]
            self._go_on(heir, cells)
            for release in releases:
                release()
            zombie.ends_of(runs)
            self._go_on(heir, cells)

    def _process_changes(self, cells: list[Cell]) -> None:
        """Another process of the same run takes the lock of the ledger: no reason for a commit to fail."""
        with self._driver("driver") as driver:
            self._hold(driver, cells)
            for cell in cells:
                cell.take_lock()
            self._let_go(cells)
            ends = {cell.label: end for cell in cells for end in self._end(driver, [cell]).values()}
            self._go_on(driver, cells)
        for cell in cells:
            if cell.place != "abort.begin":  # there the batch has failed before
                cell.outcome.problem = cell.outcome.problem or ends[cell.label][-500:]

    def _leader_killed(self, cells: list[Cell]) -> None:
        """A broker of several, that leads a partition of every topic and coordinates transactions: others take over.

        It comes back when the batches are over that it has left alone.
        """
        with self._driver("driver") as driver:
            self._hold(driver, cells)
            self._broker.kill()
            self._let_go(cells)
            self._end(driver, cells)
            self._broker.restart()
            self._go_on(driver, cells)

    # -- steps -----------------------------------------------------------------------------------

    def _hold(self, driver: SparkDriver, cells: list[Cell], transaction_ms: int | None = None) -> None:
        """Every cell at its failpoint."""
        for group in _groups(cells):
            self._lead(driver, group, transaction_ms)
            waiting = list(group)
            for _ in range(STARTS_MAX):
                for cell in waiting:
                    cell.start(driver, f"{_beside(cell)}{cell.place}=hold", transaction_ms)
                waiting = [cell for cell in waiting if not self._reaches(driver, cell)]
                if not waiting:
                    break
            for cell in group:
                cell.outcome.is_reached = cell.has_reached()

    def _lead(self, driver: SparkDriver, cells: Sequence[Cell], transaction_ms: int | None = None) -> None:
        """What has to be left behind by an earlier run is left behind."""
        with_past = [cell for cell in cells if cell.way.before]
        waiting = with_past
        for _ in range(STARTS_MAX):
            for cell in waiting:
                cell.start(driver, cell.way.before, SHORT_TRANSACTION_MS if cell.way.expires else transaction_ms)
            driver.ends_of([cell.run for cell in waiting])
            waiting = [cell for cell in waiting if not cell.has_reached(cell.way.before.partition("=")[0])]
            if not waiting:
                break
        self._wait_until_expired([cell for cell in with_past if cell.way.expires])

    def _wait_until_expired(self, cells: Sequence[Cell]) -> None:
        eventually(
            "the expiry of transactions", lambda: not any(cell.open_partitions() for cell in cells), EXPIRY_SECONDS_MAX
        )

    def _reaches(self, driver: SparkDriver, cell: Cell) -> bool:
        return self._wait_for(driver, cell, [cell.place])

    def _wait_for(self, driver: SparkDriver, cell: Cell, places: Sequence[str]) -> bool:
        """Until the query is held at these places, or has ended without."""

        def is_over() -> bool:
            return all(map(cell.has_reached, places)) or driver.end_of(cell.run) is not None

        eventually(f"{cell.label} at {places}", is_over, REACH_SECONDS_MAX)
        return all(map(cell.has_reached, places))

    def _let_go(self, cells: list[Cell]) -> None:
        for cell in cells:
            cell.order()

    def _end(self, driver: SparkDriver, cells: Sequence[Cell]) -> dict[str, str]:
        return driver.ends_of([cell.run for cell in cells])

    def _go_on(self, driver: SparkDriver, cells: list[Cell], transaction_ms: int | None = None) -> None:
        """One more batch, and start until all are done."""
        for cell in cells:
            cell.add_batch()
        for group in _groups(cells):
            left = list(group)
            for _ in range(STARTS_MAX):
                for cell in left:
                    cell.start(driver, transaction_ms=transaction_ms)
                ends = self._end(driver, left)
                for cell in left:
                    cell.outcome.problem = ends[cell.run][-500:]
                left = [cell for cell in left if cell.outcome.problem]
                if not left:
                    break

    def _judge(self, cells: list[Cell]) -> None:
        counts = java_counts(self._jars, self._broker.bootstrap, f"{self._prefix}-.*")
        for cell in cells:
            cell.judge(counts[cell.label])

    @contextmanager
    def _driver(self, name: str, master: str = "local[48,3]", **settings: str) -> Iterator[SparkDriver]:
        driver = SparkDriver(self._folder / name, master, **settings)
        try:
            yield driver.open()
        finally:
            driver.close()

    @contextmanager
    def _cluster(self) -> Iterator[StandaloneCluster]:
        with ExitStack() as stack:
            cluster = StandaloneCluster(self._folder / "cluster", cores=CLUSTER_CORES)
            stack.callback(cluster.close)
            yield cluster.start()


def _groups(cells: Sequence[Cell]) -> Iterator[Sequence[Cell]]:
    for start in range(0, len(cells), GROUP_MAX):
        yield cells[start : start + GROUP_MAX]


def _beside(cell: Cell) -> str:
    return f"{cell.way.beside}, " if cell.way.beside else ""


def _dying_and_late(cell: Cell) -> tuple[str, str]:
    """Where a task dies in a stage that is run again, and where another one of it is late."""
    dying = cell.place if cell.place.startswith("task.") else "task.sent"
    return dying, "task.flushed" if dying != "task.flushed" else "task.sent"


def java_counts(jars: Path, bootstrap: str, topics: str) -> Counter[str]:
    """What Java's console consumer sees of committed records, by the label in their values."""
    command = java.java_command(
        jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--include", topics, "--from-beginning"),
        *("--isolation-level", "read_committed", "--timeout-ms", str(JAVA_IDLE_MS)),
        options=java.SHORT_LIVED,
    )
    labels = re.compile(r"^\S+ \d+-\d+-([^:]+):")
    return Counter(found[1] for line in java.run(command).splitlines() if (found := labels.match(line)))

"""The columns of the crash matrix: many queries are held at their failpoints, and one fault hits all of them.

    run every cell to its failpoint → the fault → release → restart until finished → another batch → compare

The cells of a column share the driver and the broker that are killed, so a column takes as long as its slowest cell.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.crash_cells import (
    AVRO_EVERY,
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
from tests.support.scripted_registry import SmallRegistry
from tests.support.spark_cluster import StandaloneCluster
from tests.support.spark_driver import SparkDriver
from tests.support.waiting import eventually

GROUP_MAX = 6
"""Queries that are started at once, for two cores."""
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
    """One fault on one broker, at many failpoints."""

    def __init__(
        self, fault: str, broker: Broker, broker_name: str, *, folder: Path, jars: Path, log: Callable[[str], None]
    ) -> None:
        self._fault, self._broker, self._name = fault, broker, broker_name
        self._folder, self._jars, self._log = folder, jars, log
        self._prefix = f"{fault.replace(' ', '-')}-{broker_name}"

    def run(self, failpoints: Sequence[str]) -> list[Outcome]:
        """Run all cells. The failure of a cell is in its outcome."""
        registry = SmallRegistry()
        try:
            return self._run(failpoints, registry.url)
        finally:
            registry.close()

    def _run(self, failpoints: Sequence[str], registry_url: str) -> list[Outcome]:
        began = time.monotonic()
        cells = [
            Cell(
                *(self._fault, failpoint, self._broker, self._name),
                folder=self._folder,
                prefix=f"{self._prefix}-{number}",
                registry_url=registry_url if number % AVRO_EVERY == AVRO_EVERY - 1 else None,
            )
            for number, failpoint in enumerate(failpoints)
        ]
        self._log(f"{self._fault} on {self._name}: {len(cells)} cells")
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
        self._check(cells)
        problems = [f"{cell.failpoint}: {cell.outcome.verdict}" for cell in cells if cell.outcome.verdict]
        self._log(
            f"{self._fault} on {self._name}: {len(cells) - len(problems)} of {len(cells)} cells passed, "
            f"{time.monotonic() - began:.0f} s" + "".join(f"\n    {problem}" for problem in problems)
        )
        return [cell.outcome for cell in cells]

    # -- faults ----------------------------------------------------------------------------------

    def _executor_killed(self, cells: list[Cell]) -> None:
        """Kill all executors of the application, JVMs and Python workers. The cluster starts new ones."""
        with self._cluster() as cluster, self._driver("executors", cluster.url, **EXECUTORS) as driver:
            self._hold(driver, cells)
            assert cluster.kill_executors() > 0
            self._release(cells)
            eventually("new executors", lambda: cluster.executors() or None, EXECUTORS_SECONDS_MAX)
            self._end(driver, cells)
            self._finish(driver, cells)

    def _driver_killed(self, cells: list[Cell]) -> None:
        with self._driver("successor") as successor:
            with self._driver("victim") as victim:
                self._hold(victim, cells)
                victim.kill()
            self._finish(successor, cells)

    def _broker_restarted(self, cells: list[Cell]) -> None:
        with self._driver("driver") as driver:
            self._hold(driver, cells)
            self._broker.kill()
            self._release(cells)
            self._broker.restart()
            self._end(driver, cells)
            self._finish(driver, cells)

    def _transaction_expired(self, cells: list[Cell]) -> None:
        """Let all transactions expire: the broker limits those of the driver to the same short time-out."""
        with self._driver("driver") as driver:
            # begin.abort needs leftovers that have not expired yet: it runs last, and alone.
            last = [cell for cell in cells if cell.failpoint == "begin.abort"]
            self._hold(driver, [cell for cell in cells if cell not in last], SHORT_TRANSACTION_MS)
            self._hold(driver, last, SHORT_TRANSACTION_MS)
            self._wait_until_expired(cells)
            self._release(cells)
            self._end(driver, cells)
            self._finish(driver, cells, SHORT_TRANSACTION_MS)

    def _speculative_attempt(self, cells: list[Cell]) -> None:
        """Hold a task for ever, so that only a speculative attempt finishes it. Then kill the commit at the failpoint.

        The last driver runs without speculation: an attempt that loses may begin a transaction after its batch is
        committed, and that stays open until the next commit.
        """
        with self._cluster() as cluster, self._driver("speculation", cluster.url, **EXECUTORS, **SPECULATION) as driver:
            for group in _groups(cells):
                self._prepare(driver, group)
                for cell in group:
                    slow = cell.failpoint if cell.failpoint.startswith("task.") else "task.sent"
                    killed = "" if cell.failpoint == slow else f", {cell.failpoint}=kill"
                    cell.start(driver, f"{_more_failpoints(cell)}{slow}=hold{killed}")
                self._end(driver, group)
                for cell in group:
                    cell.outcome.is_reached = cell.has_reached()
            self._finish(driver, cells)
        with self._driver("successor") as successor:
            self._finish(successor, cells)

    def _stage_retry(self, cells: list[Cell]) -> None:
        """Kill a task and delete its shuffle files: the stage is retried while another of its tasks still runs."""
        with self._driver("retries") as driver:
            for group in _groups(cells):
                self._prepare(driver, group)
                for cell in group:
                    killed = "" if cell.failpoint.startswith("task.") else f", {cell.failpoint}=kill"
                    dying, late = _killed_and_late(cell)
                    cell.start(driver, f"{_more_failpoints(cell)}{dying}=hold, {late}=hold{killed}")
                for cell in group:
                    self._wait_for(driver, cell, _killed_and_late(cell))
                for path in driver.local_dir.rglob("shuffle_*.*"):
                    path.unlink()
                for cell in group:
                    cell.release("kill", _killed_and_late(cell)[0])
                self._end(driver, group)
                for cell in group:
                    cell.release("", _killed_and_late(cell)[1])
                    cell.outcome.is_reached = cell.has_reached() and driver.stage_retries(cell.run) > 0
            self._finish(driver, cells)

    def _zombie_driver(self, cells: list[Cell]) -> None:
        """Hold a driver until another one has taken over and finished; then release it."""
        with self._driver("successor") as successor, self._driver("zombie") as zombie:
            self._hold(zombie, cells)
            runs = [cell.run for cell in cells]
            releases = [cell.later_release() for cell in cells]
            self._finish(successor, cells)
            for release in releases:
                release()
            zombie.ends_of(runs)
            self._finish(successor, cells)

    def _process_changes(self, cells: list[Cell]) -> None:
        """Let another process of the same run take the sink lock: the commit must not fail."""
        with self._driver("driver") as driver:
            self._hold(driver, cells)
            for cell in cells:
                cell.take_lock()
            self._release(cells)
            ends = {cell.label: end for cell in cells for end in self._end(driver, [cell]).values()}
            self._finish(driver, cells)
        for cell in cells:
            if cell.failpoint != "abort.begin":  # where the batch has failed before
                cell.outcome.problem = cell.outcome.problem or ends[cell.label][-500:]

    def _leader_killed(self, cells: list[Cell]) -> None:
        """Kill a broker of several that leads partitions of every topic and coordinates transactions: others take over.

        It is restarted when the batches have ended.
        """
        with self._driver("driver") as driver:
            self._hold(driver, cells)
            self._broker.kill()
            self._release(cells)
            self._end(driver, cells)
            self._broker.restart()
            self._finish(driver, cells)

    # -- steps -----------------------------------------------------------------------------------

    def _hold(self, driver: SparkDriver, cells: list[Cell], transaction_ms: int | None = None) -> None:
        """Run every cell to its failpoint, and hold it there."""
        for group in _groups(cells):
            self._prepare(driver, group, transaction_ms)
            waiting = list(group)
            for _ in range(STARTS_MAX):
                for cell in waiting:
                    cell.start(driver, f"{_more_failpoints(cell)}{cell.failpoint}=hold", transaction_ms)
                waiting = [cell for cell in waiting if not self._reaches(driver, cell)]
                if not waiting:
                    break
            for cell in group:
                cell.outcome.is_reached = cell.has_reached()

    def _prepare(self, driver: SparkDriver, cells: Sequence[Cell], transaction_ms: int | None = None) -> None:
        """Run the earlier runs that the cells need."""
        with_previous_run = [cell for cell in cells if cell.setup.previous_run]
        waiting = with_previous_run
        for _ in range(STARTS_MAX):
            for cell in waiting:
                cell.start(
                    driver, cell.setup.previous_run, SHORT_TRANSACTION_MS if cell.setup.expires else transaction_ms
                )
            driver.ends_of([cell.run for cell in waiting])
            waiting = [cell for cell in waiting if not cell.has_reached(cell.setup.previous_run.partition("=")[0])]
            if not waiting:
                break
        self._wait_until_expired([cell for cell in with_previous_run if cell.setup.expires])

    def _wait_until_expired(self, cells: Sequence[Cell]) -> None:
        eventually(
            "the expiry of transactions", lambda: not any(cell.open_partitions() for cell in cells), EXPIRY_SECONDS_MAX
        )

    def _reaches(self, driver: SparkDriver, cell: Cell) -> bool:
        return self._wait_for(driver, cell, [cell.failpoint])

    def _wait_for(self, driver: SparkDriver, cell: Cell, failpoints: Sequence[str]) -> bool:
        """Wait until the query is held at these failpoints, or has ended; return whether it is held."""

        def is_over() -> bool:
            return all(map(cell.has_reached, failpoints)) or driver.end_of(cell.run) is not None

        eventually(f"{cell.label} at {failpoints}", is_over, REACH_SECONDS_MAX)
        return all(map(cell.has_reached, failpoints))

    def _release(self, cells: list[Cell]) -> None:
        for cell in cells:
            cell.release()

    def _end(self, driver: SparkDriver, cells: Sequence[Cell]) -> dict[str, str]:
        return driver.ends_of([cell.run for cell in cells])

    def _finish(self, driver: SparkDriver, cells: list[Cell], transaction_ms: int | None = None) -> None:
        """Add a batch to each cell, and restart the queries until all have succeeded."""
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

    def _check(self, cells: list[Cell]) -> None:
        counts = java_counts(self._jars, self._broker.bootstrap, f"{self._prefix}-.*")
        for cell in cells:
            cell.check(counts[cell.label])

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


def _more_failpoints(cell: Cell) -> str:
    return f"{cell.setup.same_run}, " if cell.setup.same_run else ""


def _killed_and_late(cell: Cell) -> tuple[str, str]:
    """Return the failpoints where a task of a retried stage is killed, and where another task of it is delayed."""
    dying = cell.failpoint if cell.failpoint.startswith("task.") else "task.sent"
    return dying, "task.flushed" if dying != "task.flushed" else "task.sent"


def java_counts(jars: Path, bootstrap: str, topics: str) -> Counter[str]:
    """Return how many committed records Java's console consumer reads, by the label in their values."""
    command = java.java_command(
        jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--include", topics, "--from-beginning"),
        *("--isolation-level", "read_committed", "--timeout-ms", str(JAVA_IDLE_MS)),
        options=java.SHORT_LIVED,
    )
    labels = re.compile(r"\S+ \d+-\d+-([^:]+):")  # an Avro value has its schema's id before it
    return Counter(match[1] for line in java.run(command).splitlines() if (match := labels.search(line)))

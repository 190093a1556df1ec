"""The faults of a chaos run: brokers are killed, paused, restarted and disconnected, one or two at a time.

Any process can be the victim: every broker, and a separate controller.

Faults, victims and durations come from a seed. The exact times do not, so a run cannot be repeated exactly.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headrace.broker import EmbeddedCluster
from headrace.errors import HeadraceError

CALM_SECONDS = (0.3, 2.0)  # between faults
FAULT_SECONDS = (0.3, 4.0)
TWO_CHANCE = 0.2  # two faults at a time, on two brokers
ALL_CHANCE = 0.05  # kill all
LOST_CHANCE = 0.2
OF_BROKERS, OF_CLIENTS = "broker-*", "[!b]*"  # client ids
STOP_SECONDS_MAX = 150


@dataclass(slots=True, frozen=True)
class Injected:
    """A fault that was injected."""

    fault: str
    broker: int
    at: float
    seconds: float
    led: tuple[int, ...]  # partitions that the broker led, according to the controller
    was_controller: bool
    alone: bool  # no other fault at the same time


class Nemesis(threading.Thread):
    """Injects faults until it is stopped, and then heals all of them."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, seed: int) -> None:
        super().__init__(name="nemesis", daemon=True)
        self.injected: list[Injected] = []
        self.error: BaseException | None = None
        self._cluster = cluster
        self._members = {member.node_id: member for member in [cluster.controller, *cluster.brokers]}
        self._topic = topic
        self._rng = random.Random(seed)
        self._stopping = threading.Event()
        self._faults: dict[str, Callable[[int, float], None]] = {
            "kill": self._kill,
            "pause": self._pause,
            "restart": self._restart,
            "cut": self._cut,
            "half open": self._half_open,
            "slow": self._slow,
            "cut from brokers": self._cut_from_brokers,
            "cut from clients": self._cut_from_clients,
            "lost responses": self._lost_responses,
        }
        self._bag: list[str] = []
        self._turns = [broker.node_id for broker in cluster.brokers]
        if cluster.has_separate_controller:
            self._turns.append(cluster.controller.node_id)

    def stop(self) -> None:
        self._stopping.set()
        self.join(STOP_SECONDS_MAX)
        if self.is_alive():
            raise TimeoutError(f"the nemesis has not stopped after {STOP_SECONDS_MAX} s")
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._rng.uniform(*CALM_SECONDS)):
                self._inject_faults()
        except BaseException as error:
            self.error = error

    def _inject_faults(self) -> None:
        chance = self._rng.random()
        if chance < ALL_CHANCE:
            self._kill_all()
            return
        count = 2 if chance < ALL_CHANCE + TWO_CHANCE else 1
        victims = self._rng.sample(sorted(self._members), count)
        timed = [(self._next_fault(), self._rng.uniform(*FAULT_SECONDS)) for _ in victims]
        faults = [fault for fault, _ in timed]
        if "kill" in faults:
            self._turn(victims, faults.index("kill"))
        chosen = [(fault, victim, seconds) for (fault, seconds), victim in zip(timed, victims, strict=True)]
        for fault, victim, seconds in chosen:
            self._record(fault, victim, seconds, alone=count == 1)
        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(self._faults[fault], victim, seconds) for fault, victim, seconds in chosen]
        for future in futures:
            future.result()

    def _turn(self, victims: list[int], index: int) -> None:
        """Choose the victim of a kill in turn, from the first broker on, so that short runs kill every process."""
        turn = self._turns.pop(0)
        self._turns.append(turn)
        if turn in victims:
            victims[victims.index(turn)] = victims[index]
        victims[index] = turn

    def _next_fault(self) -> str:
        """Return each fault in turn, in random order, so that short runs have all kinds."""
        if not self._bag:
            self._bag = self._rng.sample([*self._faults, "kill"], len(self._faults) + 1)
        return self._bag.pop()

    def _record(self, fault: str, victim: int, seconds: float, *, alone: bool) -> None:
        try:
            partitions = self._cluster.describe_topic(self._topic)
        except HeadraceError:
            partitions = []
        led = tuple(number for number, partition in enumerate(partitions) if partition["leader"] == victim)
        is_controller = victim == self._cluster.controller.node_id
        self.injected.append(Injected(fault, victim, time.monotonic(), seconds, led, is_controller, alone))

    # -- faults ----------------------------------------------------------------------------------

    def _kill(self, victim: int, seconds: float) -> None:
        self._members[victim].kill()
        self._stopping.wait(seconds)
        self._members[victim].start()

    def _kill_all(self) -> None:
        self._record("kill all", self._cluster.controller.node_id, 0, alone=False)
        for node_id in self._rng.sample(sorted(self._members), len(self._members)):
            self._members[node_id].kill()
        self._cluster.start()

    def _pause(self, victim: int, seconds: float) -> None:
        self._members[victim].pause()
        self._stopping.wait(seconds)
        self._members[victim].resume()

    def _restart(self, victim: int, seconds: float) -> None:
        self._members[victim].stop()
        self._stopping.wait(seconds)
        self._members[victim].start()

    def _cut(self, victim: int, seconds: float) -> None:
        """Refuse all connections to the victim; its own connections work."""
        self._members[victim].degrader.cut()
        self._healed_after(victim, seconds)

    def _half_open(self, victim: int, seconds: float) -> None:
        """Delay requests to the victim, including those that have timed out."""
        self._members[victim].degrader.half_open()
        self._healed_after(victim, seconds)

    def _slow(self, victim: int, seconds: float) -> None:
        self._members[victim].degrader.set(latency_ms=40, jitter_ms=120)
        self._healed_after(victim, seconds)

    def _cut_from_brokers(self, victim: int, seconds: float) -> None:
        """Close the connections of other brokers: no replication, and no heartbeats to a controller."""
        with self._members[victim].faults.inject(client_id=OF_BROKERS, close=True):
            self._stopping.wait(seconds)

    def _cut_from_clients(self, victim: int, seconds: float) -> None:
        with self._members[victim].faults.inject(client_id=OF_CLIENTS, close=True):
            self._stopping.wait(seconds)

    def _lost_responses(self, victim: int, seconds: float) -> None:
        """Execute requests of clients, but drop some responses, so that clients retry."""
        rule: dict[str, Any] = {"client_id": OF_CLIENTS, "close": True, "when": "after", "probability": LOST_CHANCE}
        with self._members[victim].faults.inject(**rule):
            self._stopping.wait(seconds)

    def _healed_after(self, victim: int, seconds: float) -> None:
        self._stopping.wait(seconds)
        self._members[victim].degrader.heal()

"""`make fuzz-data-dir`: damaged data folders, one at a time.

A data folder is made once, for one broker and for three, and left as kill -9 leaves it and as a clean stop does. Each
case copies it, damages one file, starts the brokers on the copy, and checks that what was acknowledged is there
unchanged, or that the start or the log names the file (tests/support/data_dir_check.py has the rules). With three
brokers one of them is damaged, and the others must keep everything.

A case is a process of its own, so that a broker that hangs ends with it. `--seed N --case M` runs one case again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tests.support.data_dir_brokers import LogLines, RunningBrokers
from tests.support.data_dir_check import Check, batches_of, kept_on_disk
from tests.support.data_dir_damage import (
    CUT,
    DAMAGES,
    FLIP,
    FOLDER_KIND,
    FOREIGN,
    KINDS,
    MISSING,
    NULS,
    OLDER,
    SWAP,
    Damage,
    apply,
)
from tests.support.data_dir_image import CLEAN, FACTS, KILLED, OPTIONS, Facts, prepare

CASES = 1000
CASE_SECONDS_MAX = 60.0
CLUSTER_EVERY = 4
"""One case in this many has three brokers."""
SECOND_START_EVERY = 3
BROKERS = 3
LINES_SHOWN_MAX = 30
ALWAYS = {
    1: [
        (CLEAN, "catalog.journal", MISSING),
        (CLEAN, "catalog.journal", FLIP),
        (KILLED, "partition.metadata", FOREIGN),
        (KILLED, FOLDER_KIND, MISSING),
        (CLEAN, ".log", CUT),
        (KILLED, ".log", MISSING),
        (CLEAN, ".txnindex", FLIP),
        (KILLED, "leader-epoch-checkpoint", NULS),
    ],
    BROKERS: [
        (KILLED, FOLDER_KIND, MISSING),
        (CLEAN, "partition.metadata", SWAP),
        (KILLED, "catalog.journal", OLDER),
        (CLEAN, ".log", MISSING),
    ],
}
"""Damage that once lost data in silence: every run begins with it."""


@dataclass
class Outcome:
    """The outcome of a case."""

    case: int
    brokers: int
    stop: str
    damage: str = ""
    kind: str = ""
    refused: str = ""
    named: bool = False
    broken: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def summary(self) -> str:
        if self.broken:
            return "broken"
        return "refused" if self.refused else "named" if self.named else "whole"


def plan(seed: int, brokers: int) -> list[tuple[str, str, str]]:
    """Stop, kind of file and damage of all cases: those of ALWAYS, then all there are in an order of this seed."""
    others = [(stop, kind, what) for stop in (KILLED, CLEAN) for kind in KINDS for what in DAMAGES]
    random.Random(f"{seed}/{brokers}").shuffle(others)
    return ALWAYS[brokers] + others


def run_case(images: dict[int, Path], seed: int, case: int, scratch: Path) -> Outcome:
    """Damage one file, start brokers on it, and return the outcome."""
    brokers = BROKERS if case % CLUSTER_EVERY == CLUSTER_EVERY - 1 else 1
    rng = random.Random(f"{seed}/{case}")
    planned = plan(seed, brokers)
    image = images[brokers]
    number = case // CLUSTER_EVERY if brokers == BROKERS else case - case // CLUSTER_EVERY
    root = scratch / f"case-{case}"
    for turn in range(len(planned)):  # not every damage is possible for every kind
        stop, kind, what = planned[(number + turn) % len(planned)]
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(image / stop, root)
        damage = apply(rng, image, root, kind, what)
        if damage is not None:
            break
    else:
        raise RuntimeError("no damage is possible")
    outcome = Outcome(case, brokers, stop, str(damage), kind)
    begun = time.monotonic()
    try:
        _judge(outcome, damage, image, stop, root, second=case % SECOND_START_EVERY == 0)
    except Exception:
        outcome.broken.append(f"failed: {traceback.format_exc()}")
    outcome.seconds = round(time.monotonic() - begun, 3)
    shutil.rmtree(root, ignore_errors=True)
    return outcome


def _judge(outcome: Outcome, damage: Damage, image: Path, stop: str, root: Path, *, second: bool) -> None:
    captured = LogLines()
    logging.getLogger("headrace").addHandler(captured)
    logging.getLogger("asyncio").addHandler(captured)
    outcome.lines = captured.lines
    facts = Facts.read(image / FACTS)
    check = Check(facts, damage, captured.lines, replicated=outcome.brokers > 1)
    outcome.broken = check.broken
    folders = [root / str(node_id) for node_id in range(1, outcome.brokers + 1)]
    before = {folder: kept_on_disk(folder, batches_of(image / stop / folder.name)) for folder in folders}
    for start in range(2 if second else 1):
        running = RunningBrokers(folders, **OPTIONS)
        running.start()
        try:
            for error in running.refusals.values():
                outcome.refused = f"{type(error).__name__}: {error}"
                check.refusal(error)
            if 1 in running.brokers:
                client = running.client()
                if start:
                    check.again(client)
                else:
                    check.everything(client)
                client.close()
        finally:
            running.stop()
    outcome.named = check.is_named
    for folder in folders:
        if outcome.brokers > 1 and folder.name == damage.files[0].parts[0]:
            continue  # a replica may be cut and fetch again what the leader has
        if gone := before[folder] - kept_on_disk(folder, before[folder]):
            check.broken.append(f"deleted: {len(gone)} whole batches are gone from broker {folder.name}'s disk")


# -- processes -----------------------------------------------------------------------------------


def in_child(work: Callable[[], str], seconds_max: float) -> str | None:
    """Run a function in a separate process and return its result; None if it is killed after the timeout."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receiving)
            result = work().encode()
            while result:
                result = result[os.write(sending, result) :]
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(sending)
    data = b""
    deadline = time.monotonic() + seconds_max
    try:
        while select.select([receiving], [], [], max(deadline - time.monotonic(), 0))[0]:
            more = os.read(receiving, 1 << 16)
            if not more:
                break
            data += more
        else:
            return None
    finally:
        os.close(receiving)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return data.decode() or None


def run(first: int, count: int, seed: int, folder: Path, report: Callable[[Outcome], None]) -> None:
    """Prepare the folders, then run cases."""
    images = {brokers: folder / f"brokers-{brokers}" for brokers in (1, BROKERS)}
    for brokers, image in images.items():
        if in_child(partial(_prepared, image, brokers), CASE_SECONDS_MAX) is None:
            raise SystemExit(f"the data folder of {brokers} brokers could not be made")
    for case in range(first, first + count):
        text = in_child(partial(_judged, images, seed, case, folder), CASE_SECONDS_MAX)
        if text is None:
            report(Outcome(case, 0, "", broken=[f"hang: nothing after {CASE_SECONDS_MAX:g} s, or the process died"]))
        else:
            report(Outcome(**json.loads(text)))


def _prepared(image: Path, brokers: int) -> str:
    prepare(image, brokers)
    return "done"


def _judged(images: dict[int, Path], seed: int, case: int, scratch: Path) -> str:
    return json.dumps(asdict(run_case(images, seed, case, scratch)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--case", type=int, default=None, help="run this one only")
    parser.add_argument("--verbose", action="store_true", help="say what became of every case")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}")
    first, count = (0, options.cases) if options.case is None else (options.case, 1)
    totals: Counter[str] = Counter()
    begun = time.monotonic()

    def report(outcome: Outcome) -> None:
        totals[
            "broken" if outcome.broken else "refused" if outcome.refused else "named" if outcome.named else "whole"
        ] += 1
        if outcome.broken or options.verbose or options.case is not None:
            print(
                f"case {outcome.case}: {outcome.brokers} brokers, {outcome.stop}, {outcome.seconds} s: {outcome.damage}"
            )
            for text in [*outcome.broken, *outcome.lines[:LINES_SHOWN_MAX], outcome.refused]:
                print(f"    {text}")
        if outcome.broken:
            print(f"    again: make fuzz-data-dir SEED={seed} CASE={outcome.case}", flush=True)

    with tempfile.TemporaryDirectory(prefix="headrace-data-dirs-") as folder:
        run(first, count, seed, Path(folder), report)
    print(f"{count} cases in {time.monotonic() - begun:.0f} s: {dict(totals)}")
    return 1 if totals["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())

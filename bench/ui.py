"""`make bench-ui`: what the live view costs the broker it looks at, and the producer that reports to it.

Two thousand topics of five partitions each, one page open in Chromium. The broker's time on a processor is read from
the kernel, before and after; what it takes with nobody looking, and without any view, is measured the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from playwright.sync_api import Browser

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, NewTopic
from live_view import LiveView, open_tab, running_browser

TOPICS = 2000
PARTITIONS = 5
CREATE_AT_ONCE = 200
SECONDS = 40.0
SETTLE_SECONDS = 10.0
"""A page that has just been opened asks for everything at once: that is over by then."""
SHARE_MAX = 0.03
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/topic-0000",
    "messages": "/topics/topic-0000/messages",
    "groups": "/groups",
    "transactions": "/transactions",
}


@dataclass(slots=True, frozen=True)
class Cost:
    """How much of one processor a process took."""

    case: str
    broker_share: float
    view_share: float


def cpu_seconds(pid: int) -> float:
    """Time on a processor, of a process, since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(case: str, broker_pid: int, view_pid: int | None, seconds: float) -> Cost:
    time.sleep(SETTLE_SECONDS)
    began = time.monotonic()
    before = [cpu_seconds(pid) if pid else 0.0 for pid in (broker_pid, view_pid)]
    time.sleep(seconds)
    after = [cpu_seconds(pid) if pid else 0.0 for pid in (broker_pid, view_pid)]
    took = time.monotonic() - began
    return Cost(case, (after[0] - before[0]) / took, (after[1] - before[1]) / took)


def costs(topics: int, seconds: float, pages: list[str]) -> Iterator[Cost]:
    """Case after case, on one broker."""
    with EmbeddedBroker() as broker:
        with AdminClient(broker.bootstrap) as admin:
            names = [f"topic-{number:04}" for number in range(topics)]
            for first in range(0, topics, CREATE_AT_ONCE):
                admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names[first : first + CREATE_AT_ONCE]])
        assert broker.pid is not None
        yield measured("no view", broker.pid, None, seconds)
        with LiveView(broker.bootstrap, data_dir=broker.data_dir) as view, running_browser() as browser:
            yield measured("nobody looks", broker.pid, view.facts["pid"], seconds)
            for name in pages:
                with _looking_at(browser, view, PAGES[name]):
                    yield measured(name, broker.pid, view.facts["pid"], seconds)


@contextmanager
def _looking_at(browser: Browser, view: LiveView, path: str) -> Iterator[None]:
    with open_tab(browser, view.url) as (page, _):
        page.goto(path)
        page.wait_for_selector("h1")
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=list(PAGES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    for cost in costs(options.topics, options.seconds, options.pages):
        found.append(cost)
        if not options.json:
            verdict = "" if cost.view_share == 0 else ("met" if cost.broker_share <= SHARE_MAX else "MISSED")
            print(
                f"{cost.case:14} broker {cost.broker_share:6.2%}  view {cost.view_share:6.2%}  "
                f"target ≤ {SHARE_MAX:.0%} of one processor for the broker  {verdict}",
                flush=True,
            )
    if options.json:
        print(json.dumps([asdict(cost) for cost in found], indent=2))
    return 0 if all(cost.broker_share <= SHARE_MAX for cost in found) else 1


if __name__ == "__main__":
    sys.exit(main())

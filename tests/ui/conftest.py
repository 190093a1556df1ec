"""Fixtures: one broker and one live view per session, a browser per module, a tab per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient
from tests.support.live_view import ACTION_MS_MAX, LiveView, Watch, chromium, open_tab, running_browser, shoot

expect.set_options(timeout=ACTION_MS_MAX)  # expensive feeds refresh slowly: see the collector
BROKER_OPTIONS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "log.retention.ms": -1,
}


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker shared by all tests: use unique topics, groups and transactional ids."""
    with EmbeddedBroker(BROKER_OPTIONS) as running:
        yield running


@pytest.fixture(scope="session")
def live(broker: EmbeddedBroker) -> Iterator[LiveView]:
    """The live view of the shared broker."""
    with LiveView(broker.bootstrap, data_dir=broker.data_dir) as view:
        yield view


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[AdminClient]:
    """An admin client to check effects without the view."""
    with AdminClient(broker.bootstrap) as client:
        yield client


# Per module: while it runs, the main thread has an event loop, which tests of other modules need for themselves.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with running_browser() as running:
        yield running


@pytest.fixture
def tab(browser: Browser, live: LiveView) -> Iterator[tuple[Page, Watch]]:
    """A tab, and a watch for errors and foreign requests in it."""
    with open_tab(browser, live.url) as opened:
        yield opened


@pytest.fixture
def page(tab: tuple[Page, Watch]) -> Iterator[Page]:
    """A tab; the test fails if an error occurs in it."""
    opened, watch = tab
    yield opened
    watch.check()


@pytest.fixture(scope="session")
def shot() -> Callable[[Page, str], None]:
    """Takes screenshots into build/ui/."""
    return shoot

"""One broker and one live view for all tests here; a browser for each module, a tab for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient
from live_view import ACTION_MS_MAX, LiveView, Watch, chromium, open_tab, running_browser, shoot

expect.set_options(timeout=ACTION_MS_MAX)  # what is slow to show is asked less often: see the collector
BROKER_OPTIONS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "log.retention.ms": -1,
}


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker that stays as it is: use topics, groups and transactional ids of your own."""
    with EmbeddedBroker(BROKER_OPTIONS) as running:
        yield running


@pytest.fixture(scope="session")
def live(broker: EmbeddedBroker) -> Iterator[LiveView]:
    """The view of that broker."""
    with LiveView(broker.bootstrap, data_dir=broker.data_dir) as view:
        yield view


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[AdminClient]:
    """Looks at the broker past the view."""
    with AdminClient(broker.bootstrap) as client:
        yield client


# Not longer than a module: while it runs, the main thread has an event loop, and other tests want one of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with running_browser() as running:
        yield running


@pytest.fixture
def tab(browser: Browser, live: LiveView) -> Iterator[tuple[Page, Watch]]:
    """A tab, and what must not happen in it."""
    with open_tab(browser, live.url) as opened:
        yield opened


@pytest.fixture
def page(tab: tuple[Page, Watch]) -> Iterator[Page]:
    """A tab in which nothing may go wrong: `page.goto("/topics")`."""
    opened, watch = tab
    yield opened
    watch.check()


@pytest.fixture(scope="session")
def shot() -> Callable[[Page, str], None]:
    """Pictures of a page, into build/ui/."""
    return shoot

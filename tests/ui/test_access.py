"""Access control: tokens, host and origin checks, read-only views."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from headrace.client.admin import TopicPartition
from headrace.producer.producer import Producer
from tests.support.live_view import LiveView, open_tab
from tests.support.topics import unique

SECONDS_MAX = 20
PATHS = ("/", "/topics", "/transactions", "/groups", "/faults", "/group?name=x", "/_nicegui_ws/socket.io/?EIO=4")


@pytest.fixture(scope="module")
def guarded(broker):
    """A read-only view on all addresses."""
    with LiveView(broker.bootstrap, "--listen", "0.0.0.0:0", "--read-only", data_dir=broker.data_dir) as view:
        yield view


def address(view):
    return f"http://127.0.0.1:{urlsplit(view.url).port}"


def status(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SECONDS_MAX) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def token(view):
    return view.facts["login_url"].partition("token=")[2]


def test_requests_without_the_token_are_refused(guarded):
    assert token(guarded), guarded.facts
    for path in PATHS:
        assert status(address(guarded) + path) == 401, path
    assert status(f"{address(guarded)}/?token=wrong") == 401
    assert status(f"{address(guarded)}/", Authorization="Bearer wrong") == 401
    assert status(f"{address(guarded)}/", Authorization=f"Bearer {token(guarded)}") == 200
    assert token(guarded) not in guarded.log_text


def test_loopback_view_refuses_other_hosts_and_origins(live):
    assert status(live.url) == 200
    assert status(live.url, Host="evil.example") == 421
    assert status(f"{live.url}/_nicegui_ws/socket.io/?EIO=4", Origin="http://evil.example") == 403


def test_view_cannot_be_embedded_in_a_frame(live, guarded):
    for url in (live.url, f"{live.url}/topics", f"{address(guarded)}/"):  # the last one is the login page
        try:
            response = urllib.request.urlopen(url, timeout=SECONDS_MAX)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            assert response.headers["X-Frame-Options"] == "DENY", url
            assert response.headers["Content-Security-Policy"] == "frame-ancestors 'none'", url


def test_read_only_view_hides_and_refuses_actions(guarded, browser, broker, admin):
    topic, group, name = broker.create_topic(unique("shown")), unique("shown"), unique("shown")
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    with (
        Producer(bootstrap_servers=broker.bootstrap, transactional_id=name) as producer,
        open_tab(browser, address(guarded)) as (page, watch),
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x").result(SECONDS_MAX)
        page.goto(f"/?token={token(guarded)}")
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        assert "token" not in page.url  # moved to a cookie, out of the browser history
        for path in ("/faults", f"/group?name={group}", f"/transaction?id={name}", "/transactions"):
            page.goto(path)
            expect(page.get_by_text("This view is read-only")).to_be_visible()
            for label in ("Inject", "Kill", "Preview", "Delete group", "Abort transaction", "Abort"):
                expect(page.get_by_role("button", name=label, exact=True)).to_have_count(0)
        expect(page.get_by_role("row").filter(has_text=name).first).to_be_visible()
        page.evaluate(_PRESS_ABORT, name)  # bypasses the hidden button
        expect(page.get_by_role("alert").filter(has_text="this view is read-only")).to_be_visible()
        assert admin.describe_transactions([name])[name].state == "Ongoing"
        producer.abort_transaction()
        watch.check()


_PRESS_ABORT = """name => {
  const table = document.querySelector('.hr-table');
  getElement(Number(table.id.slice(1))).$emit('act', 'abort', name);
}"""


def test_login_page_accepts_the_token(guarded, browser):
    with open_tab(browser, address(guarded)) as (page, _):
        page.goto("/groups")
        page.get_by_label("Token").fill(token(guarded))
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
        assert json.dumps(page.context.cookies()).count('"httpOnly": true') == 1

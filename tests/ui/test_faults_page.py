"""Faults page: inject and remove faults, kill and start brokers. Effects are checked by clients and control sockets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headrace.broker import control
from headrace.client.admin import AdminClient, TopicPartition
from headrace.errors import BrokerError
from headrace.producer.producer import Producer
from tests.support.broker_commands import COMMAND_SECONDS_MAX, running
from tests.support.live_view import LiveView, open_tab
from tests.support.topics import unique

SECONDS_MAX = 20


@pytest.fixture
def no_faults(broker):
    yield
    broker.faults.clear()


def test_fault_is_injected_affects_requests_and_is_removed(page: Page, broker, no_faults, shot):
    topic = broker.create_topic(unique("faulty"))
    page.goto("/faults")
    page.get_by_role("button", name="Leader moved").click()
    expect(page.get_by_label("Error", exact=True)).to_have_value("NOT_LEADER_OR_FOLLOWER")
    expect(page.get_by_label("Number of times")).to_have_value("3")
    page.get_by_label("Error", exact=True).select_option("MESSAGE_TOO_LARGE")
    page.get_by_label("Number of times").fill("")
    page.get_by_label("Topic", exact=True).fill(topic)
    page.get_by_role("button", name="Inject").click()
    row = page.get_by_role("row").filter(has_text=topic)
    expect(row).to_contain_text("MESSAGE_TOO_LARGE")
    (rule,) = broker.faults.list()
    assert (rule["api"], rule["topic"], rule["error"], rule["count"]) == ("Produce", topic, "MESSAGE_TOO_LARGE", None)

    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            producer.send(topic, b"x").result(SECONDS_MAX)
        expect(row).to_contain_text("1")
        expect(page.locator('[data-tile="Requests affected"]')).to_contain_text("1")
        shot(page, "faults")
        row.get_by_role("button", name="Remove").click()
        expect(row).to_have_count(0)
        assert broker.faults.list() == []
        producer.send(topic, b"x").result(SECONDS_MAX)


def test_refused_fault_is_shown_and_all_faults_are_removed_at_once(page: Page, broker, no_faults):
    page.goto("/faults")
    page.get_by_label("Probability in %").fill("0")
    page.get_by_role("button", name="Inject").click()
    expect(page.get_by_role("alert").filter(has_text="invalid probability 0")).to_be_visible()
    page.get_by_label("Probability in %").fill("50")
    page.get_by_label("Client id").fill("nobody-*")
    for count in (1, 2):
        page.get_by_role("button", name="Inject").click()
        expect(page.get_by_role("row").filter(has_text="client id nobody-*")).to_have_count(count)
    assert [rule["probability"] for rule in broker.faults.list()] == [0.5, 0.5]
    page.get_by_role("button", name="Remove all").click()
    expect(page.get_by_text("No faults injected")).to_be_visible()
    assert broker.faults.list() == []


def test_brokers_of_a_cluster_are_killed_and_started(browser, tmp_path, shot):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 3, *options) as (process, line):
        ready = json.loads(line)
        with (
            LiveView(ready["bootstrap"], data_dir=tmp_path) as view,
            open_tab(browser, view.url) as (page, watch),
            AdminClient(ready["bootstrap"]) as admin,
        ):
            with Producer(bootstrap_servers=ready["bootstrap"]) as producer:
                producer.send("kept", b"x").result(SECONDS_MAX)
            page.goto("/faults")
            row = page.get_by_role("row").filter(has_text="broker 3")
            expect(row).to_contain_text("running")
            before = _rows(ready)[3]["pid"]
            row.get_by_role("button", name="Kill").click()
            page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
            assert _rows(ready)[3]["pid"] == before
            row.get_by_role("button", name="Kill").click()
            dialog = page.get_by_role("alertdialog")
            expect(dialog).to_contain_text("Kill broker 3")
            dialog.get_by_role("button", name="Kill broker 3").click()
            expect(row).to_contain_text("down")
            expect(page.locator('[data-tile="Running brokers"]')).to_contain_text("2 of 3")
            assert not _rows(ready)[3]["alive"]
            out_of_sync = re.compile(r"[1-9]\d* under-replicated")
            expect(page.locator('[data-tile="Leaderless partitions"]')).to_contain_text(
                out_of_sync, timeout=SECONDS_MAX * 1000
            )
            shot(page, "faults-cluster")

            page.get_by_label("Broker", exact=True).select_option("broker 2")
            page.get_by_role("button", name="Slow disk").click()
            page.get_by_role("button", name="Inject").click()
            expect(page.get_by_role("row").filter(has_text="200 ms delay")).to_contain_text("broker 2")
            faults = {
                n: control.call(_socket(row), "status")["faults"] for n, row in _rows(ready).items() if row["alive"]
            }
            assert faults == {1: 0, 2: 1}

            row.get_by_role("button", name="Start").click()
            expect(row).to_contain_text("running")
            assert _rows(ready)[3]["pid"] not in (None, before)
            assert [broker.node_id for broker in admin.describe_cluster().brokers] == [1, 2, 3]
            assert admin.list_offsets({TopicPartition("kept", 0): -1})[TopicPartition("kept", 0)].offset == 1
            watch.check()
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0


def _rows(ready):
    return {row["node_id"]: row for row in control.call(ready["control"], "status")["brokers"]}


def _socket(row):
    facts = control.read_run_file(Path(row["data_dir"]))
    assert facts is not None
    return facts["control"]

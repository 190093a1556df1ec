"""Access page: ACLs, SCRAM users and client quotas. Effects are checked with an admin client."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.broker import EmbeddedBroker
from headrace.client.admin import (
    AclBinding,
    AclBindingFilter,
    AdminClient,
    Operation,
    Pattern,
    Permission,
    QuotaEntity,
    Resource,
    SetScramPassword,
)
from tests.support.live_view import LiveView, open_tab
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def guarded():
    with EmbeddedBroker({"authorizer.class.name": "acl", "super.users": "User:ANONYMOUS"}) as broker:
        yield broker


@pytest.fixture
def guarded_admin(guarded):
    with AdminClient(guarded.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def guarded_live(guarded):
    with LiveView(guarded.bootstrap) as view:
        yield view


@pytest.fixture
def guarded_page(browser: Browser, guarded_live: LiveView):
    with open_tab(browser, guarded_live.url) as (page, watch):
        page.goto("/access")
        yield page
        watch.check()


def confirm(page: Page, label: str) -> None:
    page.get_by_role("alertdialog").get_by_role("button", name=label).click()


def test_an_acl_is_added_and_removed(guarded_page, guarded_admin, shot):
    page = guarded_page
    page.get_by_label("Principal").fill("User:ann")
    page.get_by_label("Permission").select_option("deny")
    page.get_by_label("Operation").select_option("write")
    page.get_by_label("Resource name").fill("orders-")
    page.get_by_label("Pattern").select_option("prefixed")
    page.get_by_role("button", name="Add ACL").click()
    row = page.get_by_role("row", name=re.compile("User:ann"))
    expect(row).to_contain_text("deny")
    acl = AclBinding(Resource.TOPIC, "orders-", "User:ann", Operation.WRITE, Permission.DENY, Pattern.PREFIXED)
    ann = AclBindingFilter(principal="User:ann")
    assert guarded_admin.describe_acls(ann) == [acl]
    shot(page, "access")
    page.get_by_label("Principal").fill("ann")
    page.get_by_role("button", name="Add ACL").click()
    expect(page.get_by_role("alert").filter(has_text="invalid principal 'ann'")).to_be_visible()
    row.get_by_role("button", name="Remove").click()
    confirm(page, "Remove ACL")
    eventually("no ACL", lambda: guarded_admin.describe_acls(ann) == [])
    expect(row).to_have_count(0)


def test_users_are_shown_and_removed(guarded_page, guarded_admin):
    guarded_admin.alter_user_scram_credentials([SetScramPassword("bob", "SCRAM-SHA-256", "secret")])
    row = guarded_page.get_by_role("row", name=re.compile("bob"))
    expect(row).to_contain_text("SCRAM-SHA-256")
    row.get_by_role("button", name="Remove").click()
    confirm(guarded_page, "Remove user")
    eventually("no user", lambda: guarded_admin.describe_user_scram_credentials() == {})


def test_a_quota_is_set_and_removed(guarded_page, guarded_admin):
    page = guarded_page
    page.get_by_role("group", name="Set quota").get_by_label("Name").fill("etl")
    page.get_by_label("Applies to").select_option("client id")
    page.get_by_label("Value").fill("2048")
    page.get_by_role("button", name="Set quota").click()
    row = page.get_by_role("row", name=re.compile("client-id 'etl'"))
    expect(row).to_contain_text("2,048")
    etl = QuotaEntity(client_id="etl")
    assert guarded_admin.describe_client_quotas(etl) == {etl: {"producer_byte_rate": 2048.0}}
    page.get_by_label("Value").fill("0")
    page.get_by_role("button", name="Set quota").click()
    expect(page.get_by_role("alert").filter(has_text="expected more than 0")).to_be_visible()
    row.get_by_role("button", name="Remove").click()
    confirm(page, "Remove quota")
    eventually("no quota", lambda: guarded_admin.describe_client_quotas(etl) == {})


def test_a_cluster_without_an_authorizer_is_named(page):
    page.goto("/access")
    expect(page.get_by_role("alert").filter(has_text="ACLs are not enabled on this broker")).to_be_visible()
    expect(page.get_by_text("No SCRAM users.")).to_be_visible()

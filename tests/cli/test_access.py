"""headrace acl, user and quota: invalid usage, passwords and confirmations. tests/either has the rest."""

from __future__ import annotations

import pytest

from headrace.broker import EmbeddedBroker
from tests.support.cli_runner import facts, refused, run_cli
from tests.support.terminal import Terminal
from tests.support.topics import unique


@pytest.fixture(scope="module")
def bootstrap():
    options = {"authorizer.class.name": "acl", "super.users": "User:ANONYMOUS"}
    with EmbeddedBroker(options) as broker:
        yield broker.bootstrap


ANN = ("--principal", "User:ann", "--operation", "read")
SECRET = ("--password-env", "SECRET")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("acl", "add", *ANN, "--resource", "orders"), "invalid --resource: expected TYPE:NAME, such as topic:orders"),
        (("acl", "add", *ANN, "--resource", "topic"), "expected TYPE:NAME, such as topic:orders, got 'topic'"),
        (("acl", "add", *ANN, "--resource", "topic:"), "expected TYPE:NAME, such as topic:orders, got 'topic:'"),
        (("acl", "add", *ANN, "--resource", "cluster:mine"), "expected TYPE:NAME, such as topic:orders"),
        (
            ("acl", "add", "--principal", "ann", "--operation", "read", "--resource", "topic:a"),
            "invalid --principal: expected User:NAME, got 'ann'",
        ),
        (("acl", "list", "--pattern", "match"), "--pattern match needs --resource TYPE:NAME"),
        (("acl", "list", "--pattern", "match", "--resource", "topic"), "expected TYPE:NAME, such as topic:orders"),
        (("acl", "remove", "--yes"), "pass options that select ACLs, or --all"),
        (("acl", "remove", "--all", "--principal", "User:ann", "--yes"), "pass options that select ACLs, or --all"),
        (("user", "add", "ann"), "no password: stdin is not a terminal; pass --password-file or --password-env"),
        (("user", "add", "ann", *SECRET), "no password: the environment variable SECRET is empty"),
        (("user", "add", "ann", *SECRET, "--password-file", "-"), "pass either --password-file or --password-env"),
        (("user", "add", "ann", *SECRET, "--iterations", "100"), "4096<=x<=16384"),
        (("quota", "set", "producer_byte_rate=1"), "pass --user, --client-id, both, or --ip"),
        (("quota", "set", "--user", "ann", "producer_byte_rate"), "expected KEY=VALUE, got 'producer_byte_rate'"),
        (("quota", "set", "--user", "ann", "producer_byte_rate=-1"), "expected a number above 0, got '-1'"),
        (("quota", "set", "--user", "ann", "producer_byte_rate=nan"), "expected a number above 0, got 'nan'"),
        (("quota", "set", "--user", "ann", "--ip", "::1", "a=1"), "--ip cannot be combined with --user"),
        (("quota", "set", "--user", "ann", "--user-defaults", "a=1"), "pass either the name or --user-defaults"),
        (("quota", "set", "--user", "", "a=1"), "invalid name: it is empty; --user-defaults selects the defaults"),
    ],
)
def test_invalid_usage_is_refused(bootstrap, arguments, message):
    assert message in refused(2, *arguments, "-b", bootstrap)


def test_the_brokers_reason_is_shown(bootstrap, headrace_broker):
    unknown = ("quota", "set", "--ip", "10.0.0.1", "producer_byte_rate=1", "-b", bootstrap)
    assert "expected one of connection_creation_rate" in refused(1, *unknown)
    disabled = ("acl", "list", "-b", headrace_broker.bootstrap)
    assert "ACLs are not enabled on this broker: set authorizer.class.name" in refused(1, *disabled)


def test_a_password_is_read_from_the_first_line_of_stdin(bootstrap):
    name = unique("ann")
    add = ("user", "add", name, "--password-file", "-", "-b", bootstrap)
    assert run_cli(*add, stdin="secret\nmore\n").stdout == f"added {name}\n"
    assert run_cli(*add[:2], unique("bob"), *add[3:], stdin="\n").exit_code == 2
    assert "expected UTF-8" in run_cli(*add[:2], unique("bob"), *add[3:], stdin=b"\xff\n").stderr


def test_a_password_is_typed_twice_and_not_shown(bootstrap):
    name = unique("ann")
    with Terminal("user", "add", name, "-b", bootstrap) as terminal:
        terminal.see("Password:")
        terminal.press("typed-secret\n")
        terminal.see("Repeat for confirmation:")
        terminal.press("typed-secret\n")
        terminal.see(f"added {name}")
        assert "typed-secret" not in terminal.raw
    with Terminal("user", "remove", name, "-b", bootstrap) as terminal:
        terminal.see(rf"Remove {name} \(SCRAM-SHA-512\)\?")
        terminal.press("n\n")
        terminal.see("nothing was removed")
    assert name in run_cli("user", "list", "-b", bootstrap).stdout


def test_acls_are_shown_before_they_are_removed(bootstrap):
    topic = unique("orders")
    facts("acl", "add", *ANN, "--resource", f"topic:{topic}", "-b", bootstrap)
    with Terminal("acl", "remove", "--all", "-b", bootstrap) as terminal:
        terminal.see(topic)
        terminal.see("Remove 1 ACL?")
        terminal.press("y\n")
        terminal.see("1 ACL removed")
    assert run_cli("acl", "list", "-b", bootstrap).stdout == "no ACLs\n"


def test_quotas_are_removed_only_when_confirmed(bootstrap):
    user = unique("ann")
    facts("quota", "set", "--user", user, "producer_byte_rate=1000", "-b", bootstrap)
    with Terminal("quota", "remove", "--user", user, "-b", bootstrap) as terminal:
        terminal.see(f"Remove producer_byte_rate of user '{user}'?")
        terminal.press("n\n")
        terminal.see("nothing was removed")
    assert user in run_cli("quota", "list", "-b", bootstrap).stdout

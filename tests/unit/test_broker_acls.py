"""ACLs: precedence, implied operations and immediate effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.broker_options import resolve
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.security import Acl, AclFilter, Acls
from headrace.broker.context import Session
from headrace.broker.security.authorizer import (
    CLUSTER_NAME,
    DECISIONS_MAX,
    AclAuthorizer,
    Authorizer,
    Operation,
    Resource,
    create_authorizer,
)
from headrace.errors import ConfigError
from headrace.wire.acls import Pattern, Permission

ANN = Session("10.0.0.1", "PLAINTEXT", "User:ann")
BOB = Session("10.0.0.2", "PLAINTEXT", "User:bob")


def rule(name="orders", **changes) -> Acl:
    fields = {
        "resource": Resource.TOPIC,
        "name": name,
        "pattern": Pattern.LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
    }
    return Acl(**{**fields, **changes})


class Rules:
    def __init__(self, *rules: Acl, **options) -> None:
        self.acls = Acls()
        self.authorizer = AclAuthorizer(self.acls, **options)
        self.add(*rules)

    def add(self, *rules: Acl) -> None:
        for each in rules:
            self.acls.apply(Acls.creation(each))

    def remove(self, *rules: Acl) -> None:
        for each in rules:
            self.acls.apply(Acls.deletion(each))

    def allow(self, operation=Operation.READ, name="orders", session=ANN, resource=Resource.TOPIC) -> bool:
        return self.authorizer.allows(session, operation, resource, name)


def test_operations_without_an_acl_are_denied() -> None:
    rules = Rules(rule())
    assert rules.allow()
    assert not rules.allow(Operation.WRITE)
    assert not rules.allow(session=BOB)
    assert not rules.allow(name="other")
    assert not rules.allow(resource=Resource.GROUP)


def test_deny_takes_precedence_over_allow() -> None:
    denied = rule(permission=Permission.DENY)
    rules = Rules(rule(), rule("*", operation=Operation.ALL), denied)
    assert not rules.allow()
    assert rules.allow(Operation.WRITE)
    rules.remove(denied)
    assert rules.allow()


@pytest.mark.parametrize("granting", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_read_write_delete_and_alter_imply_describe(granting) -> None:
    rules = Rules(rule(operation=granting))
    assert rules.allow(Operation.DESCRIBE)
    assert not rules.allow(Operation.DESCRIBE_CONFIGS)


def test_alter_configs_implies_describe_configs() -> None:
    rules = Rules(rule(operation=Operation.ALTER_CONFIGS))
    assert rules.allow(Operation.DESCRIBE_CONFIGS)
    assert not rules.allow(Operation.DESCRIBE)


def test_denying_an_operation_does_not_deny_describe() -> None:
    rules = Rules(rule(operation=Operation.WRITE), rule(permission=Permission.DENY))
    assert rules.allow(Operation.DESCRIBE)
    assert not rules.allow(Operation.READ)


def test_acls_match_prefixes_wildcards_users_and_hosts() -> None:
    rules = Rules(
        rule("logs-", pattern=Pattern.PREFIXED),
        rule("logs-secret", permission=Permission.DENY),
        rule("*", principal="User:*", operation=Operation.DESCRIBE),
        rule("near", host="10.0.0.1"),
        rule("far", host="10.9.9.9"),
    )
    assert rules.allow(name="logs-web")
    assert rules.allow(name="logs-")
    assert not rules.allow(name="logs")
    assert not rules.allow(name="logs-secret")
    assert rules.allow(Operation.DESCRIBE, "anything", BOB)
    assert rules.allow(name="near")
    assert not rules.allow(name="far")


def test_a_changed_acl_takes_effect_at_once() -> None:
    rules = Rules()
    assert not rules.allow()
    rules.add(rule())
    assert rules.allow()
    rules.remove(rule())
    assert not rules.allow()


def test_super_users_are_never_denied() -> None:
    rules = Rules(rule(permission=Permission.DENY), super_users=frozenset({"User:ann"}))
    assert rules.allow()
    assert rules.allow(Operation.ALTER, CLUSTER_NAME, resource=Resource.CLUSTER)


def test_resources_without_acls_may_be_open_by_option() -> None:
    rules = Rules(rule("mine"), open_by_default=True)
    assert rules.allow(name="yours", session=BOB)
    assert not rules.allow(name="mine", session=BOB)  # there is an ACL, but not for bob


def test_the_decision_cache_is_bounded() -> None:
    rules = Rules(rule())
    for number in range(DECISIONS_MAX + 10):
        rules.allow(name=f"made-up-{number}")
    assert len(rules.authorizer._decisions) <= DECISIONS_MAX
    assert rules.allow()


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([rule("orders", operation=Operation.WRITE)], True),
        ([rule("orders", operation=Operation.READ)], False),
        ([rule("o", operation=Operation.WRITE, pattern=Pattern.PREFIXED)], True),
        ([rule("*", operation=Operation.ALL)], True),
        ([rule("orders", operation=Operation.WRITE, principal="User:bob")], False),
        (
            [
                rule("orders", operation=Operation.WRITE),
                rule("*", operation=Operation.WRITE, permission=Permission.DENY),
            ],
            False,
        ),
        (
            [
                rule("orders", operation=Operation.WRITE),
                rule("o", operation=Operation.WRITE, pattern=Pattern.PREFIXED, permission=Permission.DENY),
            ],
            False,
        ),
        (
            [
                rule("orders", operation=Operation.WRITE),
                rule("other", operation=Operation.WRITE),
                rule("orders", operation=Operation.WRITE, permission=Permission.DENY),
            ],
            True,
        ),
        (
            [rule(CLUSTER_NAME, resource=Resource.CLUSTER, operation=Operation.IDEMPOTENT_WRITE)],
            True,
        ),
    ],
)
def test_idempotent_writes_require_a_writable_topic_or_idempotent_write(rules, allowed) -> None:
    assert Rules(*rules).authorizer.allows_idempotent_write(ANN) is allowed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"orders", "or", "*", "group"}),
        ({"resource": Resource.TOPIC}, {"orders", "or", "*"}),
        ({"name": "orders"}, {"orders"}),
        ({"name": "orders", "pattern": Pattern.MATCH}, {"orders", "or", "*"}),
        ({"pattern": Pattern.PREFIXED}, {"or"}),
        ({"name": "or", "pattern": Pattern.LITERAL}, set()),
        ({"principal": "User:bob"}, {"or"}),
        ({"operation": Operation.WRITE}, {"group"}),
        ({"permission": Permission.DENY}, {"*"}),
        ({"host": "10.0.0.1"}, set()),
    ],
)
def test_filters_match_acls(changes, expected) -> None:
    rules = Rules(
        rule("orders"),
        rule("or", pattern=Pattern.PREFIXED, principal="User:bob"),
        rule("*", permission=Permission.DENY),
        rule("group", resource=Resource.GROUP, operation=Operation.WRITE),
    )
    anything = AclFilter(Resource.ANY, None, Pattern.ANY, None, None, Operation.ANY, Permission.ANY)
    assert {acl.name for acl in rules.acls.matching(anything._replace(**changes))} == expected


def test_acls_survive_a_restart(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog")
    catalog.record(Acls.creation(rule()), Acls.creation(rule("gone")))
    catalog.record(Acls.deletion(rule("gone")))
    catalog.close()
    again = Catalog(tmp_path / "catalog")
    assert [*again.acls.rules] == [rule()]
    assert [*again.acls.snapshot()] == [Acls.creation(rule())]


def test_the_option_selects_the_authorizer() -> None:
    assert type(create_authorizer(resolve(), Acls())) is Authorizer
    for name in ("acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"):
        config = resolve(("file", {"authorizer.class.name": name, "super.users": "User:ann;User:CN=x,O=y"}))
        chosen = create_authorizer(config, Acls())
        assert chosen.has_acls
        assert chosen.allows(ANN, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
        assert chosen.allows(Session("", "", "User:CN=x,O=y"), Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
        assert not chosen.allows(BOB, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
    with pytest.raises(
        ConfigError, match=r"invalid authorizer\.class\.name 'mine': expected an empty value or one of acl"
    ):
        create_authorizer(resolve(("file", {"authorizer.class.name": "mine"})), Acls())
    with pytest.raises(ConfigError, match=r"invalid super\.users entry 'ann': expected User:name"):
        create_authorizer(resolve(("file", {"authorizer.class.name": "acl", "super.users": "ann"})), Acls())

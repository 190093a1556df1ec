"""ACLs, SCRAM users and quotas by command and by the admin client; Kafka's tools show the same."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.client.admin import (
    DEFAULT,
    AclBinding,
    AclBindingFilter,
    AdminClient,
    DeleteScramCredential,
    Operation,
    Pattern,
    Permission,
    QuotaEntity,
    Resource,
    ScramCredentialInfo,
    SetScramPassword,
)
from headrace.client.credentials import SaslSettings
from headrace.errors import AuthenticationError, BrokerError, Code
from tests.support.cli_runner import facts, refused, run_cli
from tests.support.guarded_broker import GuardedBroker
from tests.support.topics import unique
from tests.support.waiting import eventually

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


@pytest.fixture(scope="module", params=["apache", "headrace"])
def guarded(request, kafka_jars, tmp_path_factory):
    broker = GuardedBroker(request.param, kafka_jars("4.3.0"), tmp_path_factory.mktemp("guarded") / "kafka")
    yield broker
    broker.remove()


@pytest.fixture
def admin(guarded):
    with AdminClient(guarded.bootstrap) as client:
        yield client


@pytest.fixture
def at(guarded):
    return ("-b", guarded.bootstrap)


def listed(at, *options):
    """The ACLs that `acl list` shows, without principal."""
    return {
        (fact["permission"], fact["operation"], fact["resource"], fact["name"], fact["pattern"], fact["host"])
        for fact in facts("acl", "list", *options, *at)["acls"]
    }


def test_acls_are_added_listed_by_every_field_and_removed(at, guarded, java_client):
    principal, topic, group = f"User:{unique('ann')}", unique("orders"), unique("billing")
    of_principal = ("--principal", principal)
    both = ("--operation", "read", "--operation", "describe")
    added = facts(
        "acl", "add", *of_principal, *both, "--resource", f"topic:{topic}", "--resource", f"group:{group}", *at
    )
    assert len(added["added"]) == 4
    prefix = topic[:-2]
    prefixed = ("--resource", f"topic:{prefix}", "--pattern", "prefixed", "--permission", "deny", "--host", "10.0.0.1")
    facts("acl", "add", *of_principal, "--operation", "write", *prefixed, *at)
    facts("acl", "add", *of_principal, "--operation", "idempotent-write", "--resource", "cluster", *at)

    on_topic = {("ALLOW", name, "TOPIC", topic, "LITERAL", "*") for name in ("READ", "DESCRIBE")}
    on_group = {("ALLOW", name, "GROUP", group, "LITERAL", "*") for name in ("READ", "DESCRIBE")}
    denied = {("DENY", "WRITE", "TOPIC", prefix, "PREFIXED", "10.0.0.1")}
    on_cluster = {("ALLOW", "IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster", "LITERAL", "*")}
    everything = on_topic | on_group | denied | on_cluster
    eventually("six ACLs", lambda: listed(at, *of_principal) == everything)
    for options, selected in (
        (("--resource", "topic"), on_topic | denied),
        (("--resource", f"topic:{topic}"), on_topic),
        (("--resource", f"topic:{topic}", "--pattern", "match"), on_topic | denied),
        (("--resource", f"group:{group}", "--resource", "cluster"), on_group | on_cluster),
        (("--operation", "read"), {acl for acl in everything if acl[1] == "READ"}),
        (("--permission", "deny"), denied),
        (("--pattern", "prefixed"), denied),
        (("--host", "10.0.0.1"), denied),
    ):
        assert listed(at, *of_principal, *options) == selected, options
    shown = java_client.tool("AclCommand", "--bootstrap-server", guarded.bootstrap, "--list", *of_principal).out
    assert f"ResourcePattern(resourceType=TOPIC, name={prefix}, patternType=PREFIXED)" in shown
    assert f"(principal={principal}, host=10.0.0.1, operation=WRITE, permissionType=DENY)" in shown
    assert shown.count(f"principal={principal}") == 6

    removal = ("acl", "remove", *of_principal, "--resource", f"topic:{topic}")
    assert "confirmation required" in refused(2, *removal, *at)
    assert len(facts(*removal, "--yes", *at)["removed"]) == 2
    eventually("four ACLs", lambda: listed(at, *of_principal) == everything - on_topic)
    assert "no ACL matches" in refused(3, *removal, "--yes", *at)
    assert run_cli("acl", "remove", *of_principal, "--yes", *at).stdout == "4 ACLs removed\n"
    eventually("no ACL", lambda: run_cli("acl", "list", *of_principal, *at).stdout == "no ACLs\n")


def test_admin_client_creates_and_deletes_acls(admin, guarded, java_client):
    principal, topic = f"User:{unique('bob')}", unique("payments")
    acls = [
        AclBinding(Resource.TOPIC, topic, principal, Operation.READ),
        AclBinding(Resource.TOPIC, topic, principal, Operation.WRITE, Permission.DENY, Pattern.PREFIXED, "10.0.0.1"),
    ]
    admin.create_acls([*acls, acls[0]])
    mine = AclBindingFilter(principal=principal)
    eventually("the ACLs", lambda: admin.describe_acls(mine) == acls)
    assert set(acls) <= set(admin.describe_acls())
    with pytest.raises(BrokerError, match="kafka-cluster") as caught:
        admin.create_acls([AclBinding(Resource.CLUSTER, "mine", principal, Operation.ALTER)])
    assert caught.value.code == Code.INVALID_REQUEST
    reads = AclBindingFilter(principal=principal, operation=Operation.READ)
    assert admin.delete_acls([reads, reads]) == acls[:1]
    tool = ("AclCommand", "--bootstrap-server", guarded.bootstrap)
    eventually("one ACL", lambda: admin.describe_acls(mine) == acls[1:])
    java_client.tool(*tool, "--remove", "--force", "--topic", topic, "--resource-pattern-type", "prefixed")
    eventually("no ACL", lambda: admin.describe_acls(mine) == [])


def test_users_are_added_altered_and_removed_and_log_in_with_their_password(at, guarded, tmp_path, java_client):
    name, file = unique("ann"), tmp_path / "password"
    file.write_text("first secret\n")
    added = facts("user", "add", name, "--mechanism", SHA_256, "--mechanism", SHA_512, "--password-file", file, *at)
    assert added == {"user": name, "mechanisms": [SHA_256, SHA_512]}

    def users():
        return [fact for fact in facts("user", "list", *at)["users"] if fact["user"] == name]

    both = [{"user": name, "mechanism": mechanism, "iterations": 4096} for mechanism in (SHA_256, SHA_512)]
    eventually("the user", lambda: users() == both)
    tool = (
        "kafka.admin.ConfigCommand",
        "--bootstrap-server",
        guarded.bootstrap,
        "--describe",
        "--entity-type",
        "users",
    )
    assert "SCRAM-SHA-512=iterations=4096" in java_client.tool(*tool, "--entity-name", name).out
    assert "first secret" not in run_cli("user", "list", *at).output
    for mechanism in (SHA_256, SHA_512):
        eventually("a log-in", partial(can_log_in, guarded, mechanism, name, "first secret"))
    again = ("user", "add", name, "--password-env", "SECRET", *at)
    assert f"user '{name}' already exists with {SHA_512}; `headrace user alter`" in refused(1, *again, SECRET="x")

    altered = ("user", "alter", name, "--password-env", "SECRET", "--iterations", "8192", *at)
    assert run_cli(*altered, SECRET="second").stdout == f"altered {name}\n"
    eventually("the new password", lambda: can_log_in(guarded, SHA_512, name, "second"))
    assert not can_log_in(guarded, SHA_512, name, "first secret")
    assert can_log_in(guarded, SHA_256, name, "first secret")
    eventually("iterations", lambda: [fact["iterations"] for fact in users()] == [4096, 8192])

    assert "confirmation required" in refused(2, "user", "remove", name, *at)
    facts("user", "remove", name, "--mechanism", SHA_256, "--yes", *at)
    eventually("one mechanism left", lambda: [fact["mechanism"] for fact in users()] == [SHA_512])
    assert run_cli("user", "remove", name, "--yes", *at).stdout == f"removed {name} ({SHA_512})\n"
    eventually("no user", lambda: users() == [])
    for command in (("alter", name, "--password-env", "SECRET"), ("remove", name, "--yes")):
        assert f"user '{name}' does not exist" in refused(3, "user", *command, *at, SECRET="x")


def can_log_in(guarded, mechanism, name, password):
    sasl = SaslSettings(mechanism, username=name, password=password)
    try:
        with AdminClient(guarded.sasl, sasl=sasl) as admin:
            admin.describe_cluster()
    except AuthenticationError:
        return False
    return True


def test_admin_client_alters_several_users_at_once(admin):
    ann, bob = unique("ann"), unique("bob")
    admin.alter_user_scram_credentials(
        [SetScramPassword(user, mechanism, "secret") for user in (ann, bob) for mechanism in (SHA_256, SHA_512)]
    )
    both = (ScramCredentialInfo(SHA_256, 4096), ScramCredentialInfo(SHA_512, 4096))
    eventually("users", lambda: {ann: both, bob: both}.items() <= admin.describe_user_scram_credentials().items())
    assert admin.describe_user_scram_credentials([ann]) == {ann: both}
    admin.alter_user_scram_credentials(
        [DeleteScramCredential(ann, SHA_256), SetScramPassword(bob, SHA_512, "other", 5000)]
    )
    left = {ann: both[1:], bob: (both[0], ScramCredentialInfo(SHA_512, 5000))}
    eventually("a deletion", lambda: left.items() <= admin.describe_user_scram_credentials().items())
    with pytest.raises(BrokerError, match=ann) as caught:
        admin.alter_user_scram_credentials([DeleteScramCredential(ann, SHA_256)])
    assert caught.value.code == Code.RESOURCE_NOT_FOUND
    assert "secret" not in repr(SetScramPassword(ann, SHA_256, "secret"))


def test_quotas_are_set_listed_and_removed(at, guarded, java_client):
    user, client = unique("ann"), unique("app")

    def quotas(*options):
        return {
            (fact["user"], fact["client_id"], fact["ip"], fact["quota"], fact["value"])
            for fact in facts("quota", "list", *options, *at)["quotas"]
        }

    entities = {
        ("--user", user): (user, None, None),
        ("--client-id", client): (None, client, None),
        ("--user", user, "--client-id", client): (user, client, None),
        ("--user", user, "--client-defaults"): (user, "", None),
        ("--user-defaults",): ("", None, None),
    }
    for number, options in enumerate(entities):
        facts("quota", "set", *options, f"producer_byte_rate={1000 + number}", "request_percentage=12.5", *at)
    facts("quota", "set", "--ip", "10.1.2.3", "connection_creation_rate=7", *at)
    facts("quota", "set", "--ip-defaults", "connection_creation_rate=8", *at)
    expected = {(*names, "producer_byte_rate", 1000.0 + number) for number, names in enumerate(entities.values())}
    expected |= {(*names, "request_percentage", 12.5) for names in entities.values()}
    ips = {(None, None, "10.1.2.3", "connection_creation_rate", 7.0), (None, None, "", "connection_creation_rate", 8.0)}
    eventually("all quotas", lambda: quotas() == expected | ips)
    assert quotas("--user", user) == {quota for quota in expected if quota[0] == user}
    assert quotas("--client-defaults") == {quota for quota in expected if quota[1] == ""}
    shown = run_cli("quota", "list", "--user", user, "--client-defaults", *at).stdout.splitlines()[1].split()
    assert shown == [user, "(default)", "-", "producer_byte_rate", "1,003"]
    tool = ("kafka.admin.ConfigCommand", "--bootstrap-server", guarded.bootstrap, "--describe")
    described = java_client.tool(*tool, "--entity-type", "users", "--entity-name", user).out
    assert "producer_byte_rate=1000.0" in described
    assert "connection_creation_rate=8.0" in java_client.tool(*tool, "--entity-type", "ips", "--entity-default").out

    removal = ("quota", "remove", "--user", user)
    assert "confirmation required" in refused(2, *removal, *at)
    assert facts(*removal, "producer_byte_rate", "--yes", *at)["removed"] == ["producer_byte_rate"]
    gone = {(user, None, None, "producer_byte_rate", 1000.0)}
    eventually("one less", lambda: quotas() == (expected | ips) - gone)
    assert "has no producer_byte_rate" in refused(3, *removal, "producer_byte_rate", "--yes", *at)
    for options in (*entities, ("--ip", "10.1.2.3"), ("--ip-defaults",)):
        facts("quota", "remove", *options, "--yes", *at)
    eventually("no quotas", lambda: run_cli("quota", "list", *at).stdout == "no quotas\n")
    assert f"user '{user}' has no quota" in refused(3, *removal, "--yes", *at)


def test_admin_client_validates_sets_and_removes_quotas(admin):
    user = unique("ann")
    mine, with_default = QuotaEntity(user=user), QuotaEntity(user=user, client_id=DEFAULT)
    admin.alter_client_quotas({mine: {"producer_byte_rate": 1e6}}, validate_only=True)
    assert admin.describe_client_quotas(mine) == {}
    admin.alter_client_quotas({mine: {"producer_byte_rate": 1e6}, with_default: {"request_percentage": 1.5}})
    both = {mine: {"producer_byte_rate": 1e6}, with_default: {"request_percentage": 1.5}}
    eventually("quotas", lambda: admin.describe_client_quotas(mine) == both)
    assert admin.describe_client_quotas(mine, strict=True) == {mine: {"producer_byte_rate": 1e6}}
    assert admin.describe_client_quotas(QuotaEntity(client_id=DEFAULT)) == {with_default: both[with_default]}
    with pytest.raises(BrokerError, match=f"user '{user}'") as caught:
        admin.alter_client_quotas({mine: {"bogus": 1.0}})
    assert caught.value.code == Code.INVALID_REQUEST
    admin.alter_client_quotas({mine: {"producer_byte_rate": None}, with_default: {"request_percentage": None}})
    eventually("no quotas", lambda: admin.describe_client_quotas(mine) == {})

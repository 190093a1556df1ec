"""Distinguished names as in Java, and the mapping of them and of Kerberos principals to users as in Kafka."""

from __future__ import annotations

import pytest

from headrace.broker.security.kerberos import UserNames
from headrace.broker.security.tls import MappingRules, distinguished_name
from headrace.errors import AuthenticationError, ConfigError


def certificate(*parts: tuple[str, str]) -> dict:
    return {"subject": tuple(((name, value),) for name, value in parts)}


CLIENT = certificate(("countryName", "DE"), ("organizationName", "Mill"), ("commonName", "Ann"))


def test_the_distinguished_name_starts_with_its_most_specific_part() -> None:
    assert distinguished_name(CLIENT) == "CN=Ann,O=Mill,C=DE"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a,b", r"CN=a\,b"),
        ('q"+<>;\\', r"CN=q\"\+\<\>\;\\"),
        (" lead", r"CN=\ lead"),
        ("trail ", r"CN=trail\ "),
        ("#hash", r"CN=\#hash"),
        ("plain # inside", "CN=plain # inside"),
        ("Ännchen", "CN=Ännchen"),
    ],
)
def test_special_characters_are_escaped(value, written) -> None:
    assert distinguished_name(certificate(("commonName", value))) == written


def test_an_email_address_has_no_short_name() -> None:
    shown = distinguished_name(certificate(("emailAddress", "a@b.c"), ("commonName", "x")))
    assert shown == "CN=x,1.2.840.113549.1.9.1=#16056140622e63"


def test_parts_of_one_level_are_joined() -> None:
    both = {"subject": ((("commonName", "x"), ("userId", "7")),)}
    assert distinguished_name(both) == "CN=x+UID=7"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", "CN=Ann,O=Mill,C=DE"),
        ("RULE:^CN=(.*?),.*$/$1/", "Ann"),
        ("RULE:^CN=(.*?),.*$/$1/L", "ann"),
        ("RULE:^CN=(.*?),O=(.*?),C=(.*)$/$1@$2/U", "ANN@MILL"),
        ("RULE:^UID=(.*)$/$1/,RULE:^CN=(.*?),.*$/$1/L,DEFAULT", "ann"),
        ("RULE:^UID=(.*)$/$1/, DEFAULT", "CN=Ann,O=Mill,C=DE"),
        ("RULE:^UID=(.*)$/$1/", "CN=Ann,O=Mill,C=DE"),
        ("RULE:^CN=Ann.*$/a $0/", "a CN=Ann,O=Mill,C=DE"),
    ],
)
def test_rules_map_names_to_users(rules, user) -> None:
    assert MappingRules.parse(rules).user(CLIENT) == user


@pytest.mark.parametrize("rules", ["RULE:x", "CN", "RULE:(/a/", "RULE:a/b/X"])
def test_invalid_mapping_rules_are_rejected(rules) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        MappingRules.parse(rules)


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        (["DEFAULT"], "ann@MILL.TEST", "ann"),
        (["DEFAULT"], "kafka/host1@MILL.TEST", "kafka"),
        (["RULE:[1:$1@$0](.*@OTHER.TEST)s/@.*//", "DEFAULT"], "bob@OTHER.TEST", "bob"),
        (["RULE:[1:$1@$0](.*@OTHER.TEST)s/@.*//", "DEFAULT"], "ann@MILL.TEST", "ann"),
        (["RULE:[2:$1](spark)s/^.*$/job-$0/"], "spark/worker1@MILL.TEST", "job-spark"),
        (["RULE:[2:$1.$2](.*)s/\\.[^.]*$//"], "spark/worker1@MILL.TEST", "spark"),
        (["RULE:[1:$1]/L", "DEFAULT"], "Ann@MILL.TEST", "ann"),
        (["RULE:[1:$1]/U"], "Ann@MILL.TEST", "ANN"),
        (["RULE:[1:$1](a.*)s/n/m/g"], "ann@MILL.TEST", "amm"),
        (["RULE:[1:$1](a.*)s/n/m/"], "ann@MILL.TEST", "amn"),
    ],
)
def test_rules_map_kerberos_principals_to_users(rules, principal, user) -> None:
    assert UserNames.parse(rules, "MILL.TEST").of(principal) == user


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        (["DEFAULT"], "ann@OTHER.TEST"),
        (["DEFAULT"], "ann/a/b@MILL.TEST"),
        (["DEFAULT"], "ann"),
        (["RULE:[2:$1]"], "ann@MILL.TEST"),
        (["RULE:[1:$1@$0]", "DEFAULT"], "ann@MILL.TEST"),
    ],
)
def test_principals_without_a_user_are_refused(rules, principal) -> None:
    with pytest.raises(AuthenticationError, match=principal):
        UserNames.parse(rules, "MILL.TEST").of(principal)


@pytest.mark.parametrize(
    "rule", ["RULE:x", "default", "RULE:[0:$1]", "RULE:[3:$1]", "RULE:[1:$1]((a)", "RULE:[1:$1]/X"]
)
def test_invalid_kerberos_rules_are_rejected(rule) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.kerberos\.principal\.to\.local\.rules"):
        UserNames.parse([rule], "MILL.TEST")

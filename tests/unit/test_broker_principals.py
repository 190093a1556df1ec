"""Distinguished names as in Java, and their mapping to users as in Kafka."""

from __future__ import annotations

import pytest

from headrace.broker.security.tls import MappingRules, distinguished_name
from headrace.errors import ConfigError


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
    ],
)
def test_rules_map_names_to_users(rules, user) -> None:
    assert MappingRules.parse(rules).user(CLIENT) == user


@pytest.mark.parametrize("rules", ["RULE:x", "CN", "RULE:(/a/", "RULE:a/b/X"])
def test_invalid_mapping_rules_are_rejected(rules) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        MappingRules.parse(rules)

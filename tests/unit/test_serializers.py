"""Serializers, and how an option's value becomes one."""

from __future__ import annotations

import pickle
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.plugins import PluginLoader
from headrace.config import Config
from headrace.errors import ConfigError, SerializationError
from headrace.producer import serializers
from headrace.producer.serializers import (
    BytesSerializer,
    FunctionSerializer,
    IntSerializer,
    JsonSerializer,
    NoneSerializer,
    Serializer,
    StrSerializer,
    UuidSerializer,
)
from headrace.producer.settings import resolve

SHORT_NAMES = ["bytes", "str", "short", "int", "long", "float", "double", "bool", "uuid", "json", "none"]
SOME_ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def load(value: object, *, is_key: bool = False, config: Config | None = None) -> Serializer:
    return PluginLoader(config or resolve(bootstrap_servers="a:1")).load(
        "value.serializer", value, serializers.KIND, is_key=is_key
    )


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("bytes", b"abc", b"abc"),
        ("bytes", bytearray(b"abc"), b"abc"),
        ("bytes", memoryview(b"abc"), b"abc"),
        ("str", "é", b"\xc3\xa9"),
        ("short", -2, b"\xff\xfe"),
        ("int", 1, b"\0\0\0\1"),
        ("int", -(2**31), b"\x80\0\0\0"),
        ("long", 2**63 - 1, b"\x7f" + b"\xff" * 7),
        ("float", 1.5, struct.pack(">f", 1.5)),
        ("double", 1.5, struct.pack(">d", 1.5)),
        ("double", 1, struct.pack(">d", 1.0)),
        ("bool", True, b"\1"),
        ("bool", False, b"\0"),
        ("uuid", SOME_ID, b"01234567-89ab-cdef-0123-456789abcdef"),
        ("json", {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
    ],
)
@pytest.mark.behaviour("P14")
def test_each_serializer_writes_what_java_would(name, value, data):
    result = load(name).serialize("t", value, [])
    assert result == data
    assert type(result) is bytes


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_none_stays_none(name):
    assert load(name).serialize("t", None, []) is None


WRONG = {
    "bytes": "text",
    "str": b"bytes",
    "short": 1.0,
    "int": "1",
    "long": True,
    "float": "1.0",
    "double": None.__class__,
    "bool": 1,
    "uuid": str(SOME_ID),
    "json": {1, 2},
    "none": b"",
}


@pytest.mark.parametrize("name", SHORT_NAMES)
@pytest.mark.behaviour("P14")
def test_a_wrong_type_names_the_type_the_serializer_and_the_topic(name):
    serializer, value = load(name, is_key=True), WRONG[name]
    with pytest.raises(SerializationError) as caught:
        serializer.serialize("orders", value, [])
    error = caught.value
    assert (error.topic, error.serializer, error.value_type) == (
        "orders",
        type(serializer).__name__,
        type(value).__name__,
    )
    assert f"got {type(value).__name__} as key of a record to topic 'orders'" in str(error)
    assert str(error).startswith(f"{type(serializer).__name__} expected ")


def test_the_error_says_what_to_do_and_survives_pickling():
    with pytest.raises(SerializationError) as caught:
        load("str").serialize("orders", 5, [])
    assert str(caught.value) == (
        "StrSerializer expected str, got int as value of a record to topic 'orders'; "
        "convert it, or set another serializer"
    )
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.topic, again.serializer, again.value_type) == (
        str(caught.value),
        "orders",
        "StrSerializer",
        "int",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("short", 2**15),
        ("int", 2**31),
        ("long", -(2**63) - 1),
        ("long", 10**4000),
        ("float", 1e300),
        ("double", 10**400),
    ],
)
def test_a_number_that_does_not_fit_is_refused(name, value):
    with pytest.raises(SerializationError, match="out of range"):
        load(name).serialize("t", value, [])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {(1, 2): 3}])
def test_values_without_a_json_form_are_refused(value):
    with pytest.raises(SerializationError, match="JsonSerializer expected a value that JSON can represent"):
        JsonSerializer().serialize("t", value, [])


@given(st.integers(-(2**31), 2**31 - 1))
def test_every_int_has_four_bytes_of_its_own(value):
    data = IntSerializer().serialize("t", value, [])
    assert data is not None
    assert int.from_bytes(data, "big", signed=True) == value


def test_bytes_that_can_change_are_copied():
    data = bytearray(b"abc")
    result = BytesSerializer().serialize("t", data, [])
    data[0] = 0
    assert result == b"abc"


def test_the_encoding_of_text_can_be_set_for_keys_values_or_both():
    config = resolve(
        {"bootstrap.servers": "a:1", "key.serializer.encoding": "utf-16-be", "serializer.encoding": "latin-1"}
    )
    assert load("str", is_key=True, config=config).serialize("t", "é", []) == b"\x00\xe9"
    assert load("str", is_key=False, config=config).serialize("t", "é", []) == b"\xe9"
    assert config.unused == set()
    assert StrSerializer("latin-1").serialize("t", "é", []) == b"\xe9"
    with pytest.raises(SerializationError, match="StrSerializer expected str that ascii can encode"):
        StrSerializer("ascii").serialize("t", "é", [])


def test_an_unknown_encoding_is_a_config_error():
    config = resolve({"bootstrap.servers": "a:1", "serializer.encoding": "utf-9"})
    with pytest.raises(ConfigError, match=r"invalid serializer\.encoding: expected an encoding .* got 'utf-9'"):
        load("str", config=config)


class Suffix(Serializer):
    """Sees topic and headers, and adds one."""

    def serialize(self, topic, value, headers):
        headers.append(("seen", topic.encode()))
        return None if value is None else f"{value}-{len(headers)}".encode()


class Duck:
    """Has the method, not the base class."""

    closed = 0

    def serialize(self, topic, value, headers):
        return b"quack"

    def close(self):
        self.closed += 1


@pytest.mark.behaviour("P14")
def test_a_serializer_sees_topic_and_headers_and_may_add_some():
    headers: list = [("a", b"1")]
    assert load(Suffix).serialize("t", "x", headers) == b"x-2"
    assert headers == [("a", b"1"), ("seen", b"t")]


@pytest.mark.parametrize(
    "value",
    [
        StrSerializer(),
        StrSerializer,
        "str",
        "headrace.producer.serializers.StrSerializer",
        "headrace.producer.serializers:StrSerializer",
        "org.apache.kafka.common.serialization.StringSerializer",
        str.encode,
        lambda text: text.encode(),
    ],
)
def test_a_serializer_may_be_given_as_object_class_path_java_name_or_function(value):
    assert load(value).serialize("t", "é", []) == b"\xc3\xa9"


def test_java_names_stand_for_ours():
    java = "org.apache.kafka.common.serialization."
    result = {name: type(load(java + name)) for name in ("ByteArraySerializer", "UUIDSerializer", "VoidSerializer")}
    assert list(result.values()) == [BytesSerializer, UuidSerializer, NoneSerializer]


def test_an_object_needs_the_method_only():
    plugins, duck = PluginLoader({}), Duck()
    serializer = plugins.load("value.serializer", duck, serializers.KIND, is_key=False)
    assert serializer.serialize("t", 1, []) == b"quack"
    plugins.close()
    assert duck.closed == 1


def test_a_function_is_not_called_for_none_and_its_errors_are_wrapped():
    serializer = FunctionSerializer(lambda value: value.encode())  # type: ignore[attr-defined]
    assert serializer.serialize("t", None, []) is None
    with pytest.raises(SerializationError, match=r"FunctionSerializer expected .* got int .*topic 't'") as caught:
        serializer.serialize("t", 5, [])
    assert isinstance(caught.value.__cause__, AttributeError)
    with pytest.raises(SerializationError, match="returns bytes, not int"):
        FunctionSerializer(lambda value: 5).serialize("t", "x", [])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sting", r"invalid value\.serializer 'sting': expected the path of a Python class, or one of bytes, str"),
        ("no.such.module.Class", "cannot be imported: No module named 'no'"),
        ("headrace.producer.serializers.Nothing", "cannot be imported"),
        ("org.apache.kafka.common.serialization.ListSerializer", "is a Java class without an equivalent"),
        (FunctionSerializer, "FunctionSerializer cannot be created without arguments"),
        (object(), "is not a valid serializer: see Serializer"),
    ],
)
def test_an_invalid_serializer_is_a_config_error(value, message):
    with pytest.raises(ConfigError, match=message):
        load(value)

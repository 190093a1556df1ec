"""The option machinery."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import Between, Config, NotEmpty, OneOf, Option, Options, Secret, parse_properties, read_properties
from headrace.errors import ConfigError

OPTIONS = Options(
    Option("batch.size", "int", 16384, "Bytes of a batch.", Between(0)),
    Option("linger.ms", "long", 5, "A wait.", Between(0)),
    Option("level", "int", -1, "A level.", Between(1, 9, also=-1)),
    Option("jitter", "double", 0.05, "Chance.", Between(0.0, 0.25)),
    Option("period", "short", 60, "Seconds."),
    Option("turbo", "bool", False, "Faster."),
    Option("protocol", "str", "PLAINTEXT", "How.", OneOf("PLAINTEXT", "SSL", ignore_case=True)),
    Option("codec", "str", "none", "Which.", OneOf("none", "gzip")),
    Option("id", "str", None, "Who.", NotEmpty()),
    Option("servers", "list", (), "Where."),
    Option("pass.word", "password", None, "Secret."),
    Option("plugin", "class", None, "A plug-in."),
    Option("plugins", "classes", (), "Plug-ins."),
    Option("java.only", "str", None, "Something of Java.", None, "low", "there is no Java here"),
)


def resolve(**given: object) -> Config:
    return OPTIONS.resolve(("argument", OPTIONS.named(given)))


@pytest.mark.parametrize(
    ("name", "given_value", "value"),
    [
        ("batch.size", "32768", 32768),
        ("batch.size", " 32768 ", 32768),
        ("batch.size", 0, 0),
        ("level", "-1", -1),
        ("jitter", "0.25", 0.25),
        ("jitter", 0, 0.0),
        ("turbo", "TRUE", True),
        ("turbo", " false ", False),
        ("turbo", True, True),
        ("protocol", "ssl", "SSL"),
        ("codec", "gzip", "gzip"),
        ("id", 5, "5"),
        ("servers", "a:1, b:2", ("a:1", "b:2")),
        ("servers", ["a:1", "b:2"], ("a:1", "b:2")),
        ("servers", "", ()),
        ("pass.word", "hush", Secret("hush")),
        ("plugin", "my.Class", "my.Class"),
        ("plugin", len, len),
        ("plugins", "a.B,c.D", ("a.B", "c.D")),
        ("plugins", [len, "a.B"], (len, "a.B")),
        ("plugins", len, (len,)),
    ],
)
def test_text_and_python_values_give_the_same(name, given_value, value):
    parsed = OPTIONS[name].parse(given_value)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("batch.size", -1, "0 or more"),
        ("batch.size", "many", "a whole number"),
        ("batch.size", "1_000", "a whole number"),
        ("batch.size", 1.5, "a whole number"),
        ("batch.size", True, "a whole number"),
        ("batch.size", 2**31, "-2147483648 to 2147483647"),
        ("linger.ms", 2**63, "-9223372036854775808 to 9223372036854775807"),
        ("period", 32768, "-32768 to 32767"),
        ("level", 10, "1 to 9, or -1"),
        ("level", 0, "1 to 9, or -1"),
        ("jitter", "nan", "a number"),
        ("jitter", 0.3, "0.0 to 0.25"),
        ("turbo", "yes", "true or false"),
        ("turbo", 1, "true or false"),
        ("protocol", "TLS", "PLAINTEXT, SSL"),
        ("codec", "GZIP", "none, gzip"),
        ("id", "", "anything but empty"),
        ("id", True, "a text"),
        ("servers", 5, "a list, or a text with commas between the items"),
        ("servers", [5], "a list, or a text with commas between the items"),
        ("plugin", "", "an object, a class, or the path of a class"),
        ("plugin", 5, "an object, a class, or the path of a class"),
    ],
)
def test_a_bad_value_names_option_value_and_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigError) as caught:
        OPTIONS.resolve(("argument", {name: value}))
    assert str(caught.value) == f"{name} is {value!r}; it may be {allowed}"


def test_a_bad_password_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        resolve(pass_word=["hush"])
    assert str(caught.value) == "pass.word is a value of type list; it may be a text"


def test_a_secret_is_hidden_until_it_is_revealed():
    secret = Secret("hush")
    config = resolve(pass_word="hush")
    assert "hush" not in f"{secret} {secret!r} {config} {config!r} {config.rows()} {[secret]}".lower()
    assert secret.reveal() == "hush"
    assert pickle.loads(pickle.dumps(secret)) == copy.deepcopy(secret) == secret
    assert len({secret, Secret("hush"), Secret("other")}) == 2


def test_defaults_are_there_and_later_layers_win():
    config = OPTIONS.resolve(
        ("profile", {"batch.size": 1, "linger.ms": 1, "level": 1}),
        ("file", {"linger.ms": "2", "level": "2"}),
        ("argument", {"level": 3}),
    )
    assert [config[name] for name in ("batch.size", "linger.ms", "level", "turbo")] == [1, 2, 3, False]
    assert [config.origin(name) for name in ("batch.size", "linger.ms", "level", "turbo")] == [
        "profile",
        "file",
        "argument",
        "default",
    ]
    assert [config.given(name) for name in ("batch.size", "linger.ms", "level", "turbo")] == [False, True, True, False]


def test_none_stands_for_not_given():
    config = resolve(batch_size=None)
    assert config["batch.size"] == 16384
    assert not config.given("batch.size")


def test_keywords_are_the_names_with_underscores_exactly():
    assert resolve(batch_size=1)["batch.size"] == 1
    with pytest.raises(ConfigError, match=r"unknown option 'batchsize'; did you mean 'batch.size'\?"):
        resolve(batchsize=1)
    with pytest.raises(ConfigError, match=r"unknown option 'qqq' \(pass options of plug-ins in the mapping"):
        resolve(qqq=1)


def test_names_with_underscores_work_in_a_mapping_but_not_twice():
    assert OPTIONS.resolve(("argument", {"batch_size": 1}))["batch.size"] == 1
    with pytest.raises(ConfigError, match=r"batch\.size is given twice, also as batch_size"):
        OPTIONS.resolve(("argument", {"batch_size": 1, "batch.size": 1}))


def test_an_option_name_that_is_not_a_str_is_an_error():
    with pytest.raises(ConfigError, match="invalid option name: expected a str, got 5"):
        OPTIONS.resolve(("argument", {5: 1}))  # type: ignore[dict-item]


def test_two_options_cannot_share_a_keyword():
    with pytest.raises(ValueError, match="same keyword"):
        Options(Option("a.b", "int", 0, ""), Option("a_b", "int", 0, ""))


def test_an_unused_name_is_warned_of_with_the_nearest_known_one(caplog):
    config = OPTIONS.resolve(("file", {"batch.szie": "1", "zzz": "2", "linger.ms": "0"}))
    assert config.unused == {"batch.szie", "zzz"}
    assert config.used == {"linger.ms"}
    config.warn_of_unused()
    assert [(record.name, record.levelno) for record in caplog.records] == [("headrace", logging.WARNING)] * 2
    assert caplog.messages == [
        "unknown option 'batch.szie' has no effect; did you mean 'batch.size'?",
        "unknown option 'zzz' has no effect",
    ]


def test_a_name_that_a_plug_in_reads_is_not_warned_of(caplog):
    config = OPTIONS.resolve(("argument", {"my.plugin.colour": "red"}))
    assert "my.plugin.colour" in config
    assert config.unused == {"my.plugin.colour"}
    assert config.get("my.plugin.colour") == "red"
    assert config.derived({}).unused == set()
    config.warn_of_unused()
    assert not caplog.messages


def test_the_repr_shows_what_is_not_default_and_hides_what_plug_ins_own():
    config = OPTIONS.resolve(
        ("argument", {"batch.size": 1, "turbo": True, "pass.word": "hush", "servers": "a,b", "x.auth": "hush"})
    )
    assert repr(config) == "Config(batch.size=1, turbo=true, servers=a,b, pass.word=[hidden], x.auth=[hidden])"


def test_config_is_a_mapping_of_everything():
    config = OPTIONS.resolve(("argument", {"x": 1}))
    assert set(config) == {*OPTIONS, "x"}
    assert len(config) == len(OPTIONS) + 1
    with pytest.raises(KeyError):
        config["y"]


def test_derived_values_say_so():
    config = resolve(level=3).derived({"batch.size": 7})
    assert (config["batch.size"], config.origin("batch.size"), config.origin("level")) == (7, "derived", "argument")


def test_typed_access_gives_the_type_or_says_what_is_missing():
    config = resolve(batch_size=1)
    assert config.of(int, "batch.size") == 1
    assert config.optional(str, "id") is None
    with pytest.raises(ConfigError, match="id is not set; it may be anything but empty"):
        config.of(str, "id")


def test_rows_and_the_docs_table_show_values_as_a_file_would():
    rows = {name: (text, origin) for name, text, origin in resolve(plugin=Secret, plugins=[len, "a.B"]).rows()}
    assert rows["turbo"] == ("false", "default")
    assert rows["id"] == ("", "default")
    assert rows["plugin"] == ("headrace.config.option.Secret", "argument")
    assert rows["plugins"] == ("builtins.builtin_function_or_method,a.B", "argument")
    table = OPTIONS.markdown().splitlines()
    assert "| `level` | int | `-1` | 1 to 9, or -1 | A level. |" in table
    assert "| `java.only` | str |  | a text | Something of Java. No effect here: there is no Java here. |" in table
    assert len(table) == len(OPTIONS) + 2


# -- .properties -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a \t= \t1 ", {"a": "1 "}),
        ("a==1", {"a": "=1"}),
        ("a = : 1", {"a": ": 1"}),
        ("a", {"a": ""}),
        ("# c\n! c\n  #c\n\na=1", {"a": "1"}),
        ("a=1#2", {"a": "1#2"}),
        ("a=1\nb=2\rc=3\r\nd=4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a=1,\\\n   2,\\\n  # 3", {"a": "1,2,# 3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("\\\n# c\na=1", {"a": "1"}),
        ("a=1\\", {"a": "1"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        (r"a=\t\n\r\f\q\"", {"a": '\t\n\r\fq"'}),
        (r"a=\u00e9\ud83d\ude00", {"a": "é😀"}),
        ("a=é", {"a": "é"}),
        ("a=1\na=2", {"a": "2"}),
        ("a\f=\f1", {"a": "1"}),
    ],
)
def test_properties_follow_the_rules_of_java(text, parsed):
    assert parse_properties(text) == parsed


def test_properties_come_from_files_in_utf8_or_latin1(tmp_path):
    path = tmp_path / "producer.properties"
    path.write_bytes("a=é".encode())
    assert read_properties(path) == {"a": "é"}
    path.write_bytes("a=é".encode("latin-1"))
    assert read_properties(str(path)) == {"a": "é"}


def test_a_file_that_cannot_be_read_is_a_config_error_with_its_name(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the options in .*gone\.properties: No such file"):
        read_properties(tmp_path / "gone.properties")
    path = tmp_path / "bad.properties"
    path.write_text("a=\\u12g4")
    with pytest.raises(ConfigError, match=r"bad\.properties: \\u must be followed by four hexadecimal digits"):
        read_properties(path)


def _escaped(text: str) -> str:
    return "".join(f"\\u{int.from_bytes(unit, 'big'):04x}" for unit in _utf16_units(text))


def _utf16_units(text: str) -> list[bytes]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[at : at + 2] for at in range(0, len(data), 2)]


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text(max_size=20)))
def test_any_text_written_in_escapes_comes_back(entries):
    text = "\n".join(f"{_escaped(key)}={_escaped(value)}" for key, value in entries.items())
    assert parse_properties(text) == entries


@settings(deadline=None)
@given(st.text(alphabet="ab=: \t\f\\\n\r#!u0", max_size=40))
def test_no_text_breaks_the_reader(text):
    try:
        parse_properties(text)
    except ValueError as error:
        assert "four hexadecimal digits" in str(error)  # noqa: PT017 - the only thing that may be wrong

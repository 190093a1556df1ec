"""Pipeline files: valid ones, and the errors for invalid ones. Without Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.spark.pipeline import Pipeline
from headrace.spark.pipeline_file import FILE_BYTES_MAX, TomlLines, parse_pipeline, read_pipeline
from headrace.spark.pipeline_spec import (
    TABLES,
    MaskedOptions,
    PipelineSpec,
    Sink,
    Source,
    Step,
    Trigger,
    masked,
    problems_of,
)

PROJECT = Path(__file__).parents[2]
GOOD = """\
# a comment
[source]
format = "json"
path = "in"
schema = "id BIGINT"

[source.options]
maxFilesPerTrigger = 10
recursiveFileLookup = true

[[steps]]
name = "clean"
sql = '''
SELECT *
FROM source -- [not a table]
'''

[[steps]]
name = "records"
sql = "SELECT CAST(id AS STRING) AS value FROM clean"

[sink]
format = "headrace"
checkpoint = "checkpoints/orders"

[sink.options]
kafka.bootstrap.servers = "localhost:9092"
topic = "orders"
kafka.ssl.key.password = "hush"

[trigger]
mode = "availablenow"

[spark]
master = "local[2]"

[spark.config]
spark.sql.shuffle.partitions = 4
"""


def problems(text, *overrides, variables=None):
    with pytest.raises(ConfigError) as caught:
        parse_pipeline(text, "p.toml", overrides, variables)
    return str(caught.value).split("\n")


def test_a_whole_file():
    spec = parse_pipeline(GOOD, "some/orders.toml")
    assert spec.name == "orders"
    assert spec.source == Source(
        "json", "in", "id BIGINT", MaskedOptions(maxFilesPerTrigger="10", recursiveFileLookup="true")
    )
    assert [step.name for step in spec.steps] == ["clean", "records"]
    assert spec.steps[0].sql == "SELECT *\nFROM source -- [not a table]"
    assert spec.sink.options["kafka.bootstrap.servers"] == "localhost:9092"
    assert (spec.sink.mode, spec.sink.checkpoint) == ("append", "checkpoints/orders")
    assert spec.trigger == Trigger("availableNow")
    assert spec.spark.config == {"spark.sql.shuffle.partitions": "4"}
    assert spec.is_stream


def test_secrets_are_not_printed():
    pipeline = Pipeline.from_toml(GOOD)
    assert "hush" not in repr(pipeline)
    assert "hush" not in repr(pipeline.spec)
    assert "hush" not in str(pipeline.spec.to_json())
    assert pipeline.spec.to_json()["sink"]["options"]["kafka.ssl.key.password"] == "[hidden]"
    assert pipeline.spec.sink.options["kafka.ssl.key.password"] == "hush"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("kafka.sasl.jaas.config", "…", "[hidden]"),
        ("fs.s3a.access.key", "AK", "[hidden]"),
        ("url", "jdbc:x://h/db?user=a&password=b&c=d", "jdbc:x://h/db?user=a&password=[hidden]&c=d"),
        ("path", "https://me:pw@host/x", "https://me:[hidden]@host/x"),
        ("topic", "orders", "orders"),
    ],
)
def test_values_that_look_like_secrets_are_masked(name, value, shown):
    assert masked(name, value) == shown


def test_unknown_names_are_reported_with_a_suggestion_and_the_line():
    text = GOOD.replace('format = "json"', 'formt = "json"').replace("[trigger]", "[triger]")
    reported = problems(text)
    assert reported == [
        "p.toml, line 31: there is no 'triger' in a pipeline; did you mean 'trigger'? "
        "(it has pipeline, source, steps, sink, trigger, spark, view)",
        "p.toml, line 3: there is no 'formt' in [source]; did you mean 'format'? "
        "(it has format, path, schema, options)",
        "p.toml, line 2: [source] format is not set; it may be anything but empty "
        "(headrace, rate, or any format that Spark reads.)",
    ]


def test_the_error_for_a_spark_option_in_the_wrong_table_names_the_right_one():
    (reported,) = problems(GOOD.replace('path = "in"', "multiline = true"))
    assert reported.startswith("p.toml, line 4: there is no 'multiline' in [source]; Spark options go into")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('mode = "availablenow"', 'mode = "now"', "line 32: [trigger] mode is 'now'; it may be availableNow, interval"),
        ('format = "headrace"', "format = true", "line 23: [sink] format is True; it may be a text"),
        ('name = "clean"', 'name = ""', "line 12: [[steps]] name is ''; it may be anything but empty"),
        ('name = "records"', 'name = "clean"', "line 20: [[steps]] the name 'clean' is not unique"),
        ('name = "records"', 'name = "source"', "line 20: [[steps]] the name 'source' is not unique"),
        ("maxFilesPerTrigger = 10", "maxFilesPerTrigger = [1]", "line 8: maxFilesPerTrigger is [1]; it may be a text"),
        ('checkpoint = "checkpoints/orders"', "", "line 22: [sink] checkpoint is not set"),
        ('mode = "availablenow"', 'mode = "batch"', "line 22: [sink] checkpoint is set, but the trigger"),
        ('mode = "availablenow"', 'interval = "1 second"', "line 31: [trigger] interval is set, but mode is"),
        ('mode = "availablenow"', 'mode = "interval"', "line 31: [trigger] interval is not set"),
        ('checkpoint = "checkpoints/orders"', 'checkpoint = "c"\nmode = "overwrite"', "for a stream it may be append"),
        ('topic = "orders"', 'commit.mode = "x"', "line 26: [sink.options] commit.mode is 'x'; it may be auto, inline"),
        ('kafka.bootstrap.servers = "localhost:9092"', "", "[sink.options] kafka.bootstrap.servers is not set"),
        ("[spark.config]", "[spark.confg]", "there is no 'confg' in [spark]; did you mean 'config'?"),
        ('[spark]\nmaster = "local[2]"\n\n[spark.config]', "[x]", "there is no 'x' in a pipeline"),
    ],
)
def test_invalid_values_are_reported_with_their_line_and_what_is_allowed(old, new, problem):
    assert old in GOOD
    assert problem in "\n".join(problems(GOOD.replace(old, new)))


def test_tables_that_are_none():
    assert problems('source = 3\nsink.format = "noop"')[0] == (
        "p.toml, line 1: source is 3; it may be a table, which begins with [source]"
    )
    assert "each begins with [[steps]]" in problems('steps = [1]\nsource.format="rate"\nsink.format="noop"')[0]
    assert "options is 5" in problems('source.format="rate"\nsource.options=5\nsink.format="noop"')[0]


def test_the_sources_own_options_are_checked():
    text = """
    source = { format = "headrace", options = { subscribe = "t" } }
    sink.format = "noop"
    """
    (reported,) = problems(text)
    assert reported.startswith("p.toml, line 2: [source.options] ")
    assert "bootstrap.servers" in reported


def test_text_that_is_not_toml_is_refused(tmp_path):
    assert re.match(r"p.toml is not TOML: .*line 1", problems("a = = 1")[0])
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_pipeline(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match=r"cannot read the pipeline .*: No such file"):
        read_pipeline(tmp_path / "none.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="may have"):
        read_pipeline(tmp_path / "large.toml")


# -- variables -----------------------------------------------------------------------------------


def test_variables_come_from_the_environment(tmp_path):
    file = tmp_path / "v.toml"
    file.write_text(
        'source = { format = "json", path = "${PIPELINE_DIR}/${DAY:-today}" }\n'
        "[[steps]]\nname=\"a\"\nsql=\"SELECT '$${x}' AS a, ${N} AS b, '${spark:y}' AS c FROM source\"\n"
        '[sink]\nformat="noop"\nmode="${MODE}"\n'
    )
    spec = read_pipeline(file, environment={"N": "5", "MODE": "complete"})
    assert spec.source.path == f"{tmp_path}/today"
    assert spec.steps[0].sql == "SELECT '${x}' AS a, 5 AS b, '${spark:y}' AS c FROM source"
    assert spec.sink.mode == "complete"


def test_a_missing_variable_is_reported_with_its_line():
    (reported,) = problems('sink.format="noop"\n[source]\nformat = "rate"\npath = "${NOWHERE}"')
    assert (
        reported
        == "p.toml, line 4: the environment variable NOWHERE is not set: set it, or write ${NOWHERE:-a default}"
    )
    (reported,) = problems('sink.format="noop"\n[source]\nformat = "rate"\npath = "${no name}"')
    assert "'${no name}' is not a variable" in reported


def test_a_variable_is_a_value_and_nothing_else():
    spec = parse_pipeline(
        'sink.format="noop"\n[source]\nformat = "${F}"', "p.toml", variables={"F": 'rate"\n[spark]\nmaster = "evil'}
    )
    assert spec.spark.master == "local[*]"


# -- overrides -----------------------------------------------------------------------------------


def test_overrides_replace_values_of_the_file():
    spec = parse_pipeline(
        GOOD,
        "p.toml",
        (
            "source.path=other=path",
            "sink.options.kafka.bootstrap.servers=b:1",
            "sink.options.topic=${literal}",
            "steps.clean.sql=SELECT 1",
            "spark.config.spark.sql.shuffle.partitions=8",
            "pipeline.name=n",
        ),
    )
    assert spec.source.path == "other=path"
    assert spec.sink.options["kafka.bootstrap.servers"] == "b:1"
    assert spec.sink.options["topic"] == "${literal}"
    assert spec.steps[0].sql == "SELECT 1"
    assert spec.spark.config == {"spark.sql.shuffle.partitions": "8"}
    assert spec.name == "n"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("nonsense", "invalid -X: expected table.key=value, got 'nonsense'"),
        ("source=x", "invalid -X: expected table.key=value, got 'source=x'"),
        ("steps.nope.sql=x", "there is no step 'nope' in p.toml"),
        ("source.formt=x", "-X source.formt: there is no 'formt' in [source]; did you mean 'format'?"),
        ("trigger.mode=x", "-X trigger.mode: [trigger] mode is 'x'; it may be"),
        ("source.path.x=y", "not a key of a table"),
    ],
)
def test_an_invalid_override_is_refused(override, problem):
    assert problem in problems(GOOD, override)[0]


# -- in Python -----------------------------------------------------------------------------------


def test_a_pipeline_made_in_python_is_checked_as_well():
    spec = PipelineSpec("p", Source("rate"), Sink("parquet", "out"), (Step("source", "SELECT 1"),))
    assert [table for table, _ in problems_of(spec)] == ["sink", "steps.0"]
    with pytest.raises(ConfigError, match=r"\[sink\] checkpoint is not set"):
        Pipeline(spec)


def test_every_key_has_a_doc():
    assert all(option.doc for options in TABLES.values() for option in options.values())


def test_lines_of_keys():
    lines = TomlLines('a.b = 1\n\n[t]\nx = [\n  1,\n]\n"quoted.key" = """\n[no]\n"""\n[[s]]\n[[s]]\ny=1\n[s.z]\nq=1\n')
    expected = {
        ("a",): 1,
        ("a", "b"): 1,
        ("t",): 3,
        ("t", "x"): 4,
        ("t", "quoted.key"): 7,
        ("s", 0): 10,
        ("s", 1): 11,
        ("s", 1, "y"): 12,
        ("s", 1, "z", "q"): 14,
        ("s", 1, "unknown"): 11,
        ("nothing",): None,
    }
    assert {path: lines.line_of(path) for path in expected} == expected


@pytest.mark.parametrize("file", sorted(PROJECT.glob("examples/*.toml")), ids=lambda file: file.name)
def test_the_examples_make_sense(file):
    spec = read_pipeline(file, environment={"BOOTSTRAP": "localhost:9092", "PARQUET": "in/"})
    assert spec.sink.format == "headrace"


def test_the_docs_name_every_key():
    text = (PROJECT / "docs" / "pipeline.md").read_text()
    for table, options in TABLES.items():
        assert f"[{table}]" in text
        assert not [name for name in options if f"`{name}`" not in text]

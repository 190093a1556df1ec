"""All commands of headrace: help, formats, exit codes and wrong usage are alike everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from headrace.cli.commands import headrace
from typed import refused, typed

COMMAND_SECONDS_MAX = 30
# It prints a script for a shell.
WITHOUT_FORMAT = {"completion"}
# What it does not know is for the benchmark that it starts.
PASSING_ON = {("bench", name) for name in ("broker", "spark", "wire")}


def walk(command, path=()):
    """Every command with its path, groups included."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, (*path, name)
            yield from walk(inner, (*path, name))


COMMANDS = dict(walk(headrace))
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}
IDS = {path: " ".join(path) or "headrace" for path in COMMANDS}


def test_the_commands_are_those_that_are_documented():
    assert {path for path in LEAVES if path[0] not in ("broker", "bench")} == {
        ("produce",),
        ("consume",),
        *((("topic", name)) for name in ("list", "create", "describe", "alter", "delete", "config")),
        *((("group", name)) for name in ("list", "describe", "reset", "delete")),
        *((("txn", name)) for name in ("list", "describe", "abort", "find-hanging")),
        ("ui",),
        ("demo",),
        ("pipeline", "run"),
        ("pipeline", "check"),
        ("audit",),
        ("doctor",),
        ("config", "show"),
        ("completion",),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=IDS.get)
def test_help_says_what_it_does_and_the_exit_codes(path):
    for flag in ("-h", "--help"):
        done = typed(*path, flag)
        assert done.exit_code == 0
    assert done.stdout.startswith("Usage: headrace")
    assert "\\b" not in done.stdout, "a mark for click stands in the text: the docstring is raw"
    if path in LEAVES or not path:
        assert "Exit codes" in done.stdout
    about = done.stdout.split("\n\n")[1].strip()
    assert about.split("\n")[0][0].isupper()


@pytest.mark.parametrize("path", LEAVES, ids=IDS.get)
def test_every_option_is_explained(path):
    for parameter in LEAVES[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.opts} has no help"


@pytest.mark.parametrize("path", [path for path in LEAVES if path[0] not in WITHOUT_FORMAT], ids=IDS.get)
def test_json_is_there_wherever_something_is_printed(path):
    choices = [
        parameter.type.choices
        for parameter in LEAVES[path].params
        if {"--format", "--report"}.intersection(parameter.opts) and isinstance(parameter.type, click.Choice)
    ]
    assert any("json" in each for each in choices), [parameter.name for parameter in LEAVES[path].params]


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in PASSING_ON], ids=IDS.get)
def test_an_option_that_does_not_exist_is_wrong_usage_in_one_paragraph(path):
    said = refused(2, *path, "--no-such-option")
    assert "No such option" in said
    assert "--no-such-option" in said


def test_a_command_that_does_not_exist_brings_the_nearest():
    assert "there is no command 'docter'; did you mean 'doctor'?" in refused(2, "docter")
    assert "there is no command 'zzz'; there are produce, consume" in refused(2, "zzz")


@pytest.mark.parametrize(
    "path",
    [path for path in LEAVES if path[0] in ("topic", "group", "txn", "produce", "consume")],
    ids=IDS.get,
)
def test_options_from_everywhere_are_checked_before_anything_is_done(path):
    """An argument that is required comes first: with all that are, -X is looked at."""
    arguments = ["x" for parameter in LEAVES[path].params if isinstance(parameter, click.Argument)]
    required = {("topic", "alter"): ("--partitions", "2")}.get(path, ())
    said = refused(2, *path, *arguments, *required, "-X", "linger.msec=5")
    assert "did you mean 'linger.ms'?" in said
    said = refused(2, *path, *arguments, *required, HEADRACE_LINGER_MS="soon")
    assert "environment HEADRACE_LINGER_MS: linger.ms is 'soon'" in said
    assert "host:port" in refused(2, *path, *arguments, *required, "-b", "nonsense")


@pytest.mark.parametrize("path", [("topic", "list"), ("group", "list"), ("txn", "list")], ids=IDS.get)
def test_a_broker_that_cannot_be_reached_is_told_with_what_to_do(path):
    from headrace.broker.ports import free_port

    address = f"127.0.0.1:{free_port()}"
    said = refused(3, *path, "-b", address)
    assert f"{address} refused the connection" in said
    assert f"headrace doctor -b {address}" in said


def python_m(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        env={**os.environ, **environment},
    )


def test_help_imports_nothing_that_is_slow():
    """A time would depend on the machine; what is imported does not."""
    code = "import sys, headrace.cli.commands; print([m for m in sys.modules if m.split('.')[0] in {heavy}])"
    heavy = {"pyarrow", "pyspark", "asyncio", "rich", "ssl"}
    done = subprocess.run(
        [sys.executable, "-c", code.replace("{heavy}", repr(heavy))], capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_it_runs_as_a_module():
    done = python_m("--version")
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "headrace")
    done = python_m("--help")
    assert done.returncode == 0
    assert "produce" in done.stdout


def test_an_error_has_a_traceback_with_debug_only(headrace_broker):
    command = ("group", "describe", "not-there", "-b", headrace_broker.bootstrap)
    plain, full = python_m(*command), python_m(*command, "--debug")
    assert plain.returncode == full.returncode == 3
    assert plain.stderr.count("\n") == 1
    assert plain.stderr.startswith("Error: there is no group 'not-there'")
    assert "Traceback" in full.stderr
    assert full.stderr.endswith(plain.stderr)


# -- completion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell):
    done = typed("completion", shell)
    assert done.exit_code == 0
    assert f"_HEADRACE_COMPLETE={shell}_complete" in done.stdout
    assert "headrace" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("headrace pr", {"produce"}),
        ("headrace group ", {"list", "describe", "reset", "delete"}),
        ("headrace config show spark", {"spark-sink", "spark-source"}),
        ("headrace txn list --form", {"--format"}),
    ],
)
def test_commands_options_and_choices_are_completed(words, expected):
    # As the script of an installed one: the name of the variable follows from that of the program.
    script = "import sys; sys.argv[0] = 'headrace'; from headrace.cli import main; main()"
    asked = {"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        env={**os.environ, **asked},
    )
    found = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert expected <= found, done


def test_json_is_json():
    assert json.loads(typed("config", "show", "topic", "--format", "json").stdout)["kind"] == "topic"

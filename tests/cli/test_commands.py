"""All commands: help, formats, exit codes and invalid usage are the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from headrace.broker.ports import free_port
from headrace.cli.commands import headrace
from tests.support.cli_runner import refused, run_cli

COMMAND_SECONDS_MAX = 30
# Prints a shell script.
WITHOUT_FORMAT = {"completion"}
# Unknown options are passed to the benchmark.
PASSES_OPTIONS_ON = {("bench", name) for name in ("broker", "spark", "wire")}


def walk(command, path=()):
    """Yield every command with its path, including groups."""
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


def test_the_documented_commands_exist():
    assert {path for path in LEAVES if path[0] not in ("broker", "bench")} == {
        ("produce",),
        ("consume",),
        *((("topic", name)) for name in ("list", "create", "describe", "alter", "delete", "config")),
        *((("group", name)) for name in ("list", "describe", "reset", "delete")),
        *((("txn", name)) for name in ("list", "describe", "abort", "find-hanging")),
        *((("acl", name)) for name in ("list", "add", "remove")),
        *((("user", name)) for name in ("list", "add", "alter", "remove")),
        *((("quota", name)) for name in ("list", "set", "remove")),
        ("ui",),
        ("demo",),
        ("pipeline", "run"),
        ("pipeline", "check"),
        ("audit",),
        ("verify",),
        ("doctor",),
        ("config", "show"),
        ("completion",),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=IDS.get)
def test_help_has_a_summary_and_exit_codes(path):
    for flag in ("-h", "--help"):
        done = run_cli(*path, flag)
        assert done.exit_code == 0
    assert done.stdout.startswith("Usage: headrace")
    assert "\\b" not in done.stdout, "a formatting mark of click is printed: the docstring is a raw string"
    if path in LEAVES or not path:
        assert "Exit codes" in done.stdout
    about = done.stdout.split("\n\n")[1].strip()
    assert about.split("\n")[0][0].isupper()


@pytest.mark.parametrize("path", LEAVES, ids=IDS.get)
def test_every_option_has_help(path):
    for parameter in LEAVES[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.opts} has no help"


@pytest.mark.parametrize("path", [path for path in LEAVES if path[0] not in WITHOUT_FORMAT], ids=IDS.get)
def test_every_command_that_prints_a_result_supports_json(path):
    choices = [
        parameter.type.choices
        for parameter in LEAVES[path].params
        if {"--format", "--report"}.intersection(parameter.opts) and isinstance(parameter.type, click.Choice)
    ]
    assert any("json" in each for each in choices), [parameter.name for parameter in LEAVES[path].params]


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in PASSES_OPTIONS_ON], ids=IDS.get)
def test_an_unknown_option_is_invalid_usage_in_one_paragraph(path):
    message = refused(2, *path, "--no-such-option")
    assert "No such option" in message
    assert "--no-such-option" in message


def test_an_unknown_command_suggests_the_nearest_one():
    assert "unknown command 'docter'; did you mean 'doctor'?" in refused(2, "docter")
    assert "unknown command 'zzz'; expected one of produce, consume" in refused(2, "zzz")


@pytest.mark.parametrize(
    "path",
    [path for path in LEAVES if path[0] in ("topic", "group", "txn", "produce", "consume")],
    ids=IDS.get,
)
def test_options_from_all_sources_are_validated_first(path):
    """Required arguments are passed, because click checks them before -X."""
    arguments = ["x" for parameter in LEAVES[path].params if isinstance(parameter, click.Argument)]
    required = {("topic", "alter"): ("--partitions", "2")}.get(path, ())
    message = refused(2, *path, *arguments, *required, "-X", "linger.msec=5")
    assert "did you mean 'linger.ms'?" in message
    message = refused(2, *path, *arguments, *required, HEADRACE_LINGER_MS="soon")
    assert "environment HEADRACE_LINGER_MS: linger.ms is 'soon'" in message
    assert "host:port" in refused(2, *path, *arguments, *required, "-b", "nonsense")


@pytest.mark.parametrize("path", [("topic", "list"), ("group", "list"), ("txn", "list")], ids=IDS.get)
def test_an_unreachable_broker_is_reported_with_a_remedy(path):
    address = f"127.0.0.1:{free_port()}"
    message = refused(3, *path, "-b", address)
    assert f"{address} refused the connection" in message
    assert f"headrace doctor -b {address}" in message


def python_m(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        env={**os.environ, **environment},
    )


def test_help_imports_no_heavy_modules():
    """Unlike a time, the list of imported modules does not depend on the machine."""
    code = "import sys, headrace.cli.commands; print([m for m in sys.modules if m.split('.')[0] in {heavy}])"
    heavy = {"pyarrow", "pyspark", "asyncio", "rich", "ssl"}
    done = subprocess.run(
        [sys.executable, "-c", code.replace("{heavy}", repr(heavy))], capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize("command", ["produce", "consume", "topic", "group", "txn", "bench"])
def test_help_of_a_command_does_not_import_the_client(command):
    code = f"import sys, headrace.cli.{command}; print([m for m in sys.modules if m in {{heavy}}])"
    heavy = {"headrace.client.blocking", "headrace.client.admin", "headrace.producer.sender", "pyarrow", "rich"}
    done = subprocess.run(
        [sys.executable, "-c", code.replace("{heavy}", repr(heavy))], capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_headrace_runs_as_a_module():
    done = python_m("--version")
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "headrace")
    done = python_m("--help")
    assert done.returncode == 0
    assert "produce" in done.stdout


def test_an_error_has_a_traceback_only_with_debug(headrace_broker):
    command = ("group", "describe", "not-there", "-b", headrace_broker.bootstrap)
    plain, full = python_m(*command), python_m(*command, "--debug")
    assert plain.returncode == full.returncode == 3
    assert plain.stderr.count("\n") == 1
    assert plain.stderr.startswith("Error: group 'not-there' does not exist")
    assert "Traceback" in full.stderr
    assert full.stderr.endswith(plain.stderr)


# -- completion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_each_shell(shell):
    done = run_cli("completion", shell)
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
    # Like the installed script: the name of the variable is derived from the program's name.
    script = "import sys; sys.argv[0] = 'headrace'; from headrace.cli import main; main()"
    variables = {"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        env={**os.environ, **variables},
    )
    completions = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert expected <= completions, done


def test_json_is_json():
    assert json.loads(run_cli("config", "show", "topic", "--format", "json").stdout)["kind"] == "topic"

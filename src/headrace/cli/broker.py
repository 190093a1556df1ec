"""headrace broker: start, stop, status, repair, faults."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.broker_cluster import joining, journals_of_cluster, run_cluster
from headrace.cli.broker_faults import faults
from headrace.cli.output import EXIT_FAILED, CommandError, command_errors, debug_option, emit, format_option
from headrace.cli.running import call, data_dir_option, default_data_dir, is_alive
from headrace.cli.settings import key_value
from headrace.cli.ui_option import ui_option

if TYPE_CHECKING:
    from headrace.broker.control import Ready

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
STOP_SECONDS_MAX = 40.0  # a little more than a broker gives itself
LEADERLESS_SHOWN_MAX = 20
_POLL_SECONDS = 0.02
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


@click.group()
def broker() -> None:
    """Run a Kafka broker on this machine, and let it fail on demand."""


@broker.command()
@click.option("--listen", metavar="HOST:PORT", help="Where to listen. Port 0: a free one. [default: 127.0.0.1:9092]")
@data_dir_option
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A server.properties file, as of Kafka.",
)
@click.option("-X", "options", metavar="KEY=VALUE", multiple=True, help="An option of the broker; may be repeated.")
@click.option(
    "--brokers",
    type=click.IntRange(1, 50),
    default=1,
    show_default=True,
    help="Start so many, as one cluster, on consecutive ports from that of --listen on.",
)
@click.option(
    "--controller",
    type=click.Choice(["separate", "combined"]),
    help="With --brokers: run the controller as a process of its own, on the port after those of the brokers, or let "
    "the first broker be the controller. [default: separate, or as it was in this data folder]",
)
@click.option("--join", metavar="HOST:PORT", help="Join the cluster of the broker that listens there: its controller.")
@click.option("--node-id", type=click.IntRange(0), help="The number of this broker in the cluster.")
@ui_option
@format_option
@debug_option
@command_errors
def start(
    listen: str | None,
    data_dir: Path | None,
    config_file: Path | None,
    options: tuple[str, ...],
    brokers: int,
    controller: str | None,
    join: str | None,
    node_id: int | None,
    ui_listen: str | None,
    output_format: str,
    debug: bool,
) -> None:
    """Run a broker in the foreground, until Ctrl-C, SIGTERM or `headrace broker stop`.

    When it is ready it prints one line with the address for `bootstrap.servers`. Its log goes to the standard error.
    What is given here counts more than what is in the file. A second Ctrl-C ends it at once.

    With --brokers 3 it runs three of them and their controller, each a process with a folder of its own in the data
    folder: any broker can be lost, the first one too. `headrace broker stop --data-dir FOLDER/broker-2` stops one of
    them, and `headrace broker start --join HOST:PORT --node-id 2 --data-dir FOLDER/broker-2` starts it again, with the
    address of any broker of the cluster; so can further brokers be added.

    \b
    Exit codes: 0 stopped in good order; 1 it could not start, or not stop in good order; 2 wrong usage;
    130, 143 a second signal ended it.
    """
    from headrace.broker.broker_options import data_folder, resolve
    from headrace.config import read_properties

    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, format=LOG_FORMAT)
    given = read_properties(config_file) if config_file else {}
    arguments: dict[str, object] = dict(key_value(text, "-X") for text in options)
    if listen is not None and brokers == 1:
        arguments["listeners"] = f"PLAINTEXT://{_address(listen)}"
    if controller is not None and brokers == 1:
        raise click.UsageError("--controller is for --brokers")
    if brokers > 1:
        if join is not None or node_id is not None:
            raise click.UsageError("--brokers starts a cluster of its own: --join and --node-id are for one broker")
        folder = (data_dir or default_data_dir().with_name("cluster")).absolute()
        with _view_beside(ui_listen, output_format) as open_view:
            run_cluster(
                brokers,
                {**given, **arguments},
                folder,
                None if listen is None else _address(listen),
                output_format,
                open_view,
                separate_controller=None if controller is None else controller == "separate",
            )
        return
    if join is not None:
        arguments = joining(join, node_id, arguments)
    elif node_id is not None:
        arguments["node.id"] = node_id
    if data_dir is not None or not {"log.dir", "log.dirs"} & {*given, *arguments}:
        named = default_data_dir() if join is None else default_data_dir().with_name(f"broker-{arguments['node.id']}")
        arguments["log.dirs"] = str((data_dir or named).absolute())
    config = resolve(("file", given), ("argument", arguments))
    _warn_if_open(config)
    folder = data_folder(config)
    if there := [node_id for node_id in journals_of_cluster(folder) if node_id]:
        names = ", ".join(f"broker-{each}" for each in there)
        raise click.UsageError(
            f"{folder} holds a cluster of {len(there)} brokers ({names}): start it with --brokers {max(there)}, or "
            "name another --data-dir for a broker that is alone"
        )

    def announce(ready: Ready) -> None:
        config.warn_of_unused()  # by now all that read options of their own have done so
        text = f"headrace broker ready: bootstrap.servers={ready.bootstrap} (data in {folder}, pid {ready.pid})"
        emit(output_format, ready.to_json(), text)
        open_view(ready)

    from headrace.broker.main import run

    with _view_beside(ui_listen, output_format) as open_view:
        run(config, announce)


@contextmanager
def _view_beside(listen: str | None, output_format: str) -> Iterator[Callable[[Ready], None]]:
    """What opens the live view of a broker that is ready, if it was asked for; it is closed at the end."""
    with ExitStack() as stack:

        def open_view(ready: Ready) -> None:
            if listen is None:
                return
            from headrace.cli.view_process import ViewProcess

            view = stack.enter_context(ViewProcess(listen, ready.bootstrap, Path(ready.data_dir)))
            view.tell_later(lambda url: emit(output_format, {"ui": url}, f"headrace ui ready: {url}"))

        yield open_view


@broker.command()
@data_dir_option
@format_option
@debug_option
@command_errors
def status(data_dir: Path | None, output_format: str, debug: bool) -> None:
    """Say whether a broker runs on a data folder, where, and since when.

    \b
    Exit codes: 0 it runs; 1 it does not answer; 2 wrong usage; 3 none runs there.
    """
    facts = call(data_dir, "status")
    seconds = facts["uptime_ms"] / 1000
    lines = [
        f"running since {seconds:,.0f} s: pid {facts['pid']}, version {facts['version']}",
        f"bootstrap.servers={facts['bootstrap']}",
        f"data in {facts['data_dir']}",
        f"{facts['topics']} topics, {facts['partitions']} partitions, {facts['connections']} connections, "
        f"{facts['faults']} faults",
    ]
    problem = (facts.get("catalog") or {}).get("problem")
    if problem:
        lines.append(f"the controller's catalog is refused: {problem}")
    for row in facts.get("brokers", ()):
        lines.append(f"broker {row['node_id']}: {_process_text(row)}")
        if row.get("catalog_problem"):
            lines.append(f"broker {row['node_id']}: the controller's catalog is refused: {row['catalog_problem']}")
    if facts.get("controller"):
        lines.append(f"controller: {_process_text(facts['controller'])}")
    leaderless = [str(row["text"]) for row in facts.get("leaderless", ())]
    lines += leaderless[:LEADERLESS_SHOWN_MAX]
    if len(leaderless) > LEADERLESS_SHOWN_MAX:
        lines.append(f"{len(leaderless) - LEADERLESS_SHOWN_MAX} partitions more have no leader: --format json has all")
    lines += [f"stray folder, kept: {stray['folder']}: {stray['reason']}" for stray in facts.get("strays", ())]
    for name, count in facts.get("task_failures", {}).items():
        lines.append(f"background task {name} failed {count} times: see the log, and report it")
    for text in facts.get("damaged", ()):
        lines.append(f"damaged: {text}")
    emit(output_format, facts, "\n".join(lines))


@broker.command()
@data_dir_option
@click.option(
    "--from",
    "sources",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="The data folder of another broker of the cluster (or its catalog.journal), to take the catalog from. May be "
    "repeated: the newest one is taken.",
)
@click.option(
    "--accept",
    metavar="TOPIC-PARTITION",
    multiple=True,
    help="A folder whose records are of the topic of its name, whatever its partition.metadata says. May be repeated.",
)
@click.option("--yes", "apply", is_flag=True, help="Do it. Without, say what would be done.")
@format_option
@debug_option
@command_errors
def repair(
    data_dir: Path | None,
    sources: tuple[Path, ...],
    accept: tuple[str, ...],
    apply: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Put right a data folder whose catalog is damaged or lost, while no broker runs on it.

    Says what is wrong, what is lost and what would be done; --yes does it, and keeps a copy of catalog.journal as it
    was. No records are deleted. Topics that the catalog has lost are added again from their folders if the broker is
    alone; in a cluster, --from takes the catalog from another broker.

    \b
    Exit codes: 0 nothing to do, or it is done; 1 it would be done with --yes, or it failed; 2 wrong usage.
    """
    from headrace.broker.repair import repair as repair_folder

    folder = (data_dir or default_data_dir()).absolute()
    plan, copy = repair_folder(folder, [source.absolute() for source in sources], accept, apply=apply)
    facts = {
        "data_dir": str(folder),
        "problems": plan.problems,
        "lost": plan.lost,
        "actions": plan.actions,
        "applied": apply and bool(plan.actions),
        "copy": None if copy is None else str(copy),
    }
    lines = [f"problem: {text}" for text in plan.problems]
    lines += [f"lost: {text}" for text in plan.lost]
    lines += [f"{'done' if apply else 'to do'}: {text}" for text in plan.actions]
    if copy is not None:
        lines.append(f"the journal as it was: {copy}")
    if not plan.actions:
        lines.append(f"{folder}: there is nothing to do")
    elif not apply:
        lines.append("nothing was changed: --yes does it")
    emit(output_format, facts, "\n".join(lines))
    if plan.actions and not apply:
        raise SystemExit(EXIT_FAILED)


@broker.command()
@data_dir_option
@format_option
@debug_option
@command_errors
def stop(data_dir: Path | None, output_format: str, debug: bool) -> None:
    """Stop the broker that runs on a data folder, in good order.

    \b
    Exit codes: 0 it has stopped; 1 it would not; 2 wrong usage; 3 none ran there.
    """
    pid = int(call(data_dir, "status")["pid"])
    call(data_dir, "stop")
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while is_alive(pid):
        if time.monotonic() > deadline:
            raise CommandError(f"the broker (pid {pid}) still runs after {STOP_SECONDS_MAX:g} s; kill {pid} ends it")
        time.sleep(_POLL_SECONDS)
    emit(output_format, {"stopped": pid}, f"the broker (pid {pid}) has stopped")


def _process_text(row: Mapping[str, object]) -> str:
    state = f"pid {row['pid']}" if row["alive"] else "down"
    return f"{row['bootstrap']}, {state}, data in {row['data_dir']}"


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 0xFFFF:
        raise click.UsageError(f"--listen takes HOST:PORT, not {text!r}")
    return f"{host}:{port}"


def _warn_if_open(config: Mapping[str, object]) -> None:
    """A broker without security is for this machine only; say so if others can reach it."""
    listeners = config["listeners"]
    assert isinstance(listeners, tuple)
    for listener in listeners:
        name, _, address = listener.partition("://")
        if name == "PLAINTEXT" and not address.startswith(_LOOPBACK):
            click.echo(
                f"warning: {listener} lets everybody who can reach this machine read and write everything. "
                "Listen on 127.0.0.1, or set up TLS and SASL.",
                err=True,
            )


broker.add_command(faults)

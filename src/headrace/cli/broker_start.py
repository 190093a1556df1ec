"""headrace broker start: a broker in the foreground, a cluster of several (--brokers), or one that joins (--join)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.broker_control import data_dir_option, default_data_dir
from headrace.cli.errors import CommandError, InvalidUsageError, command_errors
from headrace.cli.output import LOG_FORMAT, debug_option, emit, format_option
from headrace.cli.shared_options import is_loopback, parse_key_value, parse_listen, ui_option
from headrace.client.addresses import PORT_MAX, Endpoint
from headrace.config import read_properties

if TYPE_CHECKING:
    from headrace.broker.control import RunningBroker

Announce = Callable[["RunningBroker", str], None]
"""Called when a broker or cluster is ready, with the line to print."""
DEFAULT_PORT = 9092
REGISTRY_LISTEN_DEFAULT = "127.0.0.1:8081"
REGISTRY_LISTENER = "headrace.schema.registry.listener"
JOURNAL_NAME = "catalog.journal"
_LOOPBACK = "127.0.0.1"


@click.command()
@click.option(
    "--listen", metavar="HOST:PORT", help="Address to listen on; port 0 selects a free one. [default: 127.0.0.1:9092]"
)
@data_dir_option
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A server.properties file of Kafka.",
)
@click.option("-X", "assignments", metavar="KEY=VALUE", multiple=True, help="Broker option; repeatable.")
@click.option(
    "--brokers",
    "broker_count",
    type=click.IntRange(1, 50),
    default=1,
    show_default=True,
    help="Start a cluster of this many brokers, on consecutive ports from that of --listen.",
)
@click.option(
    "--controller",
    type=click.Choice(["separate", "combined"]),
    help="With --brokers: run the controller in its own process, on the port after those of the brokers, or in the "
    "first broker. [default: separate, or as before in this data folder]",
)
@click.option("--join", metavar="HOST:PORT", help="Join the cluster whose broker or controller has this address.")
@click.option("--node-id", type=click.IntRange(0), help="Node id of this broker in the cluster.")
@click.option(
    "--schema-registry",
    "registry_listen",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value=REGISTRY_LISTEN_DEFAULT,
    help="Also start a schema registry with Confluent's REST API, which keeps its schemas in the topic _schemas. "
    f"[default address: {REGISTRY_LISTEN_DEFAULT}]",
)
@ui_option
@format_option
@debug_option
@command_errors
def start(
    *,
    listen: str | None,
    data_dir: Path | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    broker_count: int,
    controller: str | None,
    join: str | None,
    node_id: int | None,
    registry_listen: str | None,
    ui_listen: str | None,
    output_format: str,
    debug: bool,
) -> None:
    """Run a broker in the foreground, until Ctrl-C, SIGTERM or `headrace broker stop`.

    When the broker is ready, it prints a line with its bootstrap.servers. Its log goes to stderr. Command-line options
    take precedence over the file. A second Ctrl-C ends it at once.

    --brokers 3 runs three brokers and their controller, each in its own process with its own folder in the data folder;
    any broker can fail, including the first. `headrace broker stop --data-dir FOLDER/broker-2` stops one of them, and
    `headrace broker start --join HOST:PORT --node-id 2 --data-dir FOLDER/broker-2` starts it again, with the address of
    any broker of the cluster. --join also adds new brokers.

    With --schema-registry, a second line has the URL of the registry. It is for a single broker. Users and passwords
    are set with -X headrace.schema.registry.users=ann:secret.

    \b
    Exit codes: 0 stopped cleanly; 1 failed to start or to stop cleanly; 2 invalid usage; 130, 143 ended by a second
    signal.
    """
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, format=LOG_FORMAT)
    file_options = read_properties(config_file) if config_file else {}
    options: dict[str, object] = dict(parse_key_value(text, "-X") for text in assignments)
    endpoint = None if listen is None else Endpoint(*parse_listen(listen))
    with ExitStack() as stack:

        def announce(ready: RunningBroker, text: str) -> None:
            emit(output_format, ready.to_json(), text)
            if ready.schema_registry is not None and output_format != "json":
                click.echo(f"headrace schema registry ready: {ready.schema_registry}")
            if ui_listen is not None:
                _start_view(stack, ui_listen, ready, output_format)

        if registry_listen is not None:
            if broker_count > 1 or join is not None:
                raise InvalidUsageError(
                    "--schema-registry is for a single broker: start one for the registry, without --brokers and --join"
                )
            registry_host, registry_port = parse_listen(registry_listen, "--schema-registry")
            options[REGISTRY_LISTENER] = str(Endpoint(registry_host, registry_port))
        if broker_count > 1:
            if join is not None or node_id is not None:
                raise InvalidUsageError("--brokers starts a new cluster: --join and --node-id apply to one broker")
            folder = (data_dir or default_data_dir().with_name("cluster")).absolute()
            is_separate = _has_separate_controller(folder, None if controller is None else controller == "separate")
            ports = _consecutive_ports(broker_count + is_separate, endpoint)
            _run_cluster(broker_count, {**file_options, **options}, folder, ports, announce)
            return
        if controller is not None:
            raise InvalidUsageError("--controller requires --brokers")
        if endpoint is not None:
            options["listeners"] = f"PLAINTEXT://{endpoint}"
        if join is not None:
            options = _join_options(join, node_id, options)
        elif node_id is not None:
            options["node.id"] = node_id
        if data_dir is not None or not {"log.dir", "log.dirs"} & {*file_options, *options}:
            default = (
                default_data_dir() if join is None else default_data_dir().with_name(f"broker-{options['node.id']}")
            )
            options["log.dirs"] = str((data_dir or default).absolute())
        _run_broker(file_options, options, announce)


def _start_view(stack: ExitStack, listen: str, ready: RunningBroker, output_format: str) -> None:
    """Start the live view, and print its address when it is ready; `stack` closes it."""
    from headrace.cli.ui import ViewProcess  # Imported here: it loads the clients, which a broker does not need.

    registry = {} if ready.schema_registry is None else {"HEADRACE_SCHEMA_REGISTRY_URL": ready.schema_registry}
    view = stack.enter_context(ViewProcess(listen, ready.bootstrap, Path(ready.data_dir), registry))
    view.on_ready(lambda url: emit(output_format, {"ui": url}, f"headrace ui ready: {url}"))


def _run_broker(file_options: Mapping[str, str], options: Mapping[str, object], announce: Announce) -> None:
    # Imported here: `broker status` and `broker stop` should not load the broker.
    from headrace.broker.broker_options import data_folder, resolve
    from headrace.broker.main import run

    config = resolve(("file", file_options), ("argument", options))
    _warn_if_open(config)
    folder = data_folder(config)
    if node_ids := [node_id for node_id in _cluster_journals(folder) if node_id]:
        names = ", ".join(f"broker-{node_id}" for node_id in node_ids)
        raise InvalidUsageError(
            f"{folder} holds a cluster of {len(node_ids)} brokers ({names}): start it with --brokers {max(node_ids)}, "
            "or use another --data-dir for a single broker"
        )

    def on_ready(ready: RunningBroker) -> None:
        config.warn_of_unused()  # by now every component has read its options
        announce(
            ready, f"headrace broker ready: bootstrap.servers={ready.bootstrap} (data in {folder}, pid {ready.pid})"
        )

    run(config, on_ready)


def _warn_if_open(config: Mapping[str, object]) -> None:
    """Warn of listeners without security that other machines can reach."""
    listeners = config["listeners"]
    assert isinstance(listeners, tuple)
    for listener in listeners:
        name, _, address = listener.partition("://")
        if name == "PLAINTEXT" and not is_loopback(parse_listen(address, "listeners")[0]):
            click.echo(
                f"warning: {listener} gives everyone who can reach this machine full access; listen on 127.0.0.1, or "
                "configure TLS and SASL",
                err=True,
            )
    registry = config[REGISTRY_LISTENER]
    is_reachable = isinstance(registry, str) and not is_loopback(parse_listen(registry, REGISTRY_LISTENER)[0])
    if is_reachable and config["headrace.schema.registry.users"] is None:
        click.echo(
            f"warning: the schema registry on {registry} gives everyone who can reach this machine full access; listen "
            "on 127.0.0.1, or set headrace.schema.registry.users",
            err=True,
        )


# -- clusters --------------------------------------------------------------------------------------


def _run_cluster(
    count: int, options: Mapping[str, object], folder: Path, ports: Sequence[int], announce: Announce
) -> None:
    """Run brokers on the ports, with a separate controller if there is one port more, until they are stopped."""
    # Imported here: `broker status` and `broker stop` should not load the broker.
    from headrace.broker.embedded_cluster import EmbeddedCluster
    from headrace.broker.supervisor import Supervisor

    is_separate = len(ports) > count
    cluster = EmbeddedCluster(
        count,
        options,
        data_dir=folder,
        ports=ports[:count],
        controller_port=ports[-1] if is_separate else 0,
        separate_controller=is_separate,
    )

    def on_ready(ready: RunningBroker) -> None:
        controller = f"controller {ready.listeners['controller']}, " if is_separate else ""
        announce(
            ready,
            f"headrace cluster of {count} brokers ready: bootstrap.servers={ready.bootstrap} "
            f"({controller}data in {folder}, pid {ready.pid})",
        )

    async def run() -> None:
        await Supervisor(cluster, folder).run(on_ready)

    asyncio.run(run())


def _has_separate_controller(folder: Path, requested: bool | None) -> bool:
    """Return whether the controller is separate: as before in this folder, else as requested, by default True."""
    from headrace.broker.embedded_cluster import CONTROLLER_ID  # Imported here: see _run_cluster.

    journals = _cluster_journals(folder)
    if not journals:
        return requested is not False
    controller_id = _recorded_controller(journals)
    if controller_id is None:  # no broker has registered yet
        controller_id = CONTROLLER_ID if CONTROLLER_ID in journals else CONTROLLER_ID + 1
    if controller_id not in journals:
        controller_folder = folder / f"broker-{controller_id}"
        sources = " ".join(f"--from {journal.parent}" for journal in journals.values())
        raise CommandError(
            f"the controller of the cluster in {folder} is broker {controller_id}, but {controller_folder} has no "
            f"{JOURNAL_NAME}: restore the folder. If it is lost, copy the catalog from the other brokers: headrace "
            f"broker repair --data-dir {controller_folder} {sources} --yes"
        )
    is_separate = controller_id == CONTROLLER_ID
    if requested not in (None, is_separate):
        raise InvalidUsageError(
            f"--controller: the cluster in {folder} has a {'separate' if is_separate else 'combined'} controller, "
            "which holds its catalog: omit the option, or use another data folder"
        )
    return is_separate


def _cluster_journals(folder: Path) -> dict[int, Path]:
    """Return the journals of the brokers of a cluster by node id; each has its own folder."""
    paths = {path.parent.name.removeprefix("broker-"): path for path in folder.glob(f"broker-*/{JOURNAL_NAME}")}
    return dict(sorted((int(text), path) for text, path in paths.items() if text.isdecimal()))


def _recorded_controller(journals: Mapping[int, Path]) -> int | None:
    """Return the node id of the controller, as recorded by any broker; None if none has registered yet."""
    from headrace.broker.catalog.journal import parse  # Imported here: see _run_cluster.

    for path in journals.values():
        events = (event for line in reversed(parse(path.read_bytes())) for event in line.events if not line.problem)
        controller_id = next((event["controller"] for event in events if event["kind"] == "broker"), None)
        if controller_id is not None:
            return int(controller_id)
    return None


def _consecutive_ports(count: int, listen: Endpoint | None) -> list[int]:
    host, port = listen or (_LOOPBACK, DEFAULT_PORT)
    if host not in (_LOOPBACK, "localhost", ""):
        raise InvalidUsageError(
            f"--brokers supports only 127.0.0.1, got {host}: start each broker with --join to use other addresses"
        )
    if port + count - 1 > PORT_MAX:
        raise InvalidUsageError(
            f"--listen {_LOOPBACK}:{port}: brokers and a separate controller need {count} consecutive ports, but "
            f"{port + count - 1} exceeds {PORT_MAX}; start at {PORT_MAX - count + 1} or lower"
        )
    return [port + index if port else 0 for index in range(count)]


def _join_options(join: str, node_id: int | None, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a broker that joins a cluster."""
    if node_id is None and "node.id" not in options:
        raise InvalidUsageError("--join requires --node-id: an id that no other broker of the cluster has")
    joined: dict[str, object] = {"listeners": f"PLAINTEXT://{_LOOPBACK}:0", **options, "headrace.controller": join}
    return joined if node_id is None else {**joined, "node.id": node_id}

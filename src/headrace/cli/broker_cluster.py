"""headrace broker start --brokers N: a cluster in the foreground; and --join: a broker more for one that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.output import CommandError, emit

if TYPE_CHECKING:
    from headrace.broker.control import Ready

DEFAULT_PORT = 9092
JOURNAL_NAME = "catalog.journal"
PORT_MAX = 0xFFFF
_LOOPBACK = "127.0.0.1"


def run_cluster(
    count: int,
    options: Mapping[str, object],
    folder: Path,
    listen: str | None,
    output_format: str,
    on_ready: Callable[[Ready], None],
    *,
    separate_controller: bool | None = None,
) -> None:
    """Run several brokers, on consecutive ports of the loopback, until they are told to stop."""
    from headrace.broker.embedded_cluster import EmbeddedCluster
    from headrace.broker.supervisor import Supervisor

    is_separate = _has_separate_controller(folder, separate_controller)
    ports = _ports(count + is_separate, listen)
    cluster = EmbeddedCluster(
        count,
        options,
        data_dir=folder,
        ports=ports[:count],
        controller_port=ports[-1] if is_separate else 0,
        separate_controller=is_separate,
    )

    def announce(ready: Ready) -> None:
        controller = f"controller {ready.listeners['controller']}, " if cluster.has_separate_controller else ""
        text = (
            f"headrace cluster of {count} brokers ready: bootstrap.servers={ready.bootstrap} "
            f"({controller}data in {folder}, pid {ready.pid})"
        )
        emit(output_format, ready.to_json(), text)
        on_ready(ready)

    async def run() -> None:
        await Supervisor(cluster, folder).run(announce)

    asyncio.run(run())


def _has_separate_controller(folder: Path, wanted: bool | None) -> bool:
    """As it was before in this folder: the cluster's catalog is there; else as is wanted, by default separate."""
    from headrace.broker.embedded_cluster import SEPARATE

    journals = journals_of_cluster(folder)
    if not journals:
        return wanted is not False
    controller_id = _recorded_controller(journals)
    if controller_id is None:  # it was never more than begun
        controller_id = SEPARATE if SEPARATE in journals else SEPARATE + 1
    if controller_id not in journals:
        home = folder / f"broker-{controller_id}"
        sources = " ".join(f"--from {journal.parent}" for journal in journals.values())
        raise CommandError(
            f"the controller of the cluster in {folder} is broker {controller_id}, but {home} has no "
            f"{JOURNAL_NAME}: put the folder back. If it is lost, take the catalog from the other brokers: headrace "
            f"broker repair --data-dir {home} {sources} --yes"
        )
    before = controller_id == SEPARATE
    if wanted not in (None, before):
        raise click.UsageError(
            f"--controller: the cluster in {folder} has a {'separate' if before else 'combined'} controller, which has "
            "its catalog: leave the option out, or use another data folder"
        )
    return before


def journals_of_cluster(folder: Path) -> dict[int, Path]:
    """Return the journals of the brokers that have a folder each in a cluster's, by node id."""
    paths = {path.parent.name.removeprefix("broker-"): path for path in folder.glob(f"broker-*/{JOURNAL_NAME}")}
    return dict(sorted((int(text), path) for text, path in paths.items() if text.isdecimal()))


def _recorded_controller(journals: Mapping[int, Path]) -> int | None:
    """Return the node id of the controller, as any of the brokers knows it; None if none has registered yet."""
    from headrace.broker.catalog.journal import parse

    for path in journals.values():
        events = (event for line in reversed(parse(path.read_bytes())) for event in line.events if not line.problem)
        controller_id = next((event["controller"] for event in events if event["kind"] == "broker"), None)
        if controller_id is not None:
            return int(controller_id)
    return None


def _ports(count: int, listen: str | None) -> list[int]:
    host, _, text = (listen or f"{_LOOPBACK}:{DEFAULT_PORT}").rpartition(":")
    if host not in (_LOOPBACK, "localhost", ""):
        raise click.UsageError(
            f"--brokers starts brokers on 127.0.0.1 only, not on {host}: for other addresses start each with --join"
        )
    port = int(text)
    if port + count - 1 > PORT_MAX:
        raise click.UsageError(
            f"--listen {_LOOPBACK}:{port}: the brokers, and the controller if it is separate, need {count} consecutive "
            f"ports, {port} to {port + count - 1}, and {PORT_MAX} is the last there is: begin with "
            f"{PORT_MAX - count + 1} or a lower one"
        )
    return [port + index if port else 0 for index in range(count)]


def joining(join: str, node_id: int | None, arguments: Mapping[str, object]) -> dict[str, object]:
    """The options of a broker that joins a cluster."""
    if node_id is None and "node.id" not in arguments:
        raise click.UsageError("--join needs --node-id: a number that no other broker of the cluster has")
    options: dict[str, object] = {"listeners": f"PLAINTEXT://{_LOOPBACK}:0", **arguments, "headrace.controller": join}
    return options if node_id is None else {**options, "node.id": node_id}

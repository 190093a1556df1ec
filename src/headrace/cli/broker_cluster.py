"""headrace broker start --brokers N: a cluster in the foreground; and --join: a broker more for one that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.output import emit

if TYPE_CHECKING:
    from headrace.broker.control import Ready

DEFAULT_PORT = 9092
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

    *ports, controller_port = _ports(count + 1, listen)
    cluster = EmbeddedCluster(
        count,
        options,
        data_dir=folder,
        ports=ports,
        controller_port=controller_port,
        separate_controller=_has_separate_controller(folder, separate_controller),
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
    from headrace.broker.broker import JOURNAL_NAME
    from headrace.broker.embedded_cluster import SEPARATE

    if (folder / f"broker-{SEPARATE}" / JOURNAL_NAME).exists():
        before = True
    elif (folder / f"broker-{SEPARATE + 1}" / JOURNAL_NAME).exists():
        before = False
    else:
        return wanted is not False
    if wanted not in (None, before):
        raise click.UsageError(
            f"--controller: the cluster in {folder} has a {'separate' if before else 'combined'} controller, which has "
            "its catalog: leave the option out, or use another data folder"
        )
    return before


def _ports(count: int, listen: str | None) -> list[int]:
    host, _, text = (listen or f"{_LOOPBACK}:{DEFAULT_PORT}").rpartition(":")
    if host not in (_LOOPBACK, "localhost", ""):
        raise click.UsageError(
            f"--brokers starts brokers on 127.0.0.1 only, not on {host}: for other addresses start each with --join"
        )
    port = int(text)
    return [port + index if port else 0 for index in range(count)]


def joining(join: str, node_id: int | None, arguments: Mapping[str, object]) -> dict[str, object]:
    """The options of a broker that joins a cluster."""
    if node_id is None and "node.id" not in arguments:
        raise click.UsageError("--join needs --node-id: a number that no other broker of the cluster has")
    options: dict[str, object] = {"listeners": f"PLAINTEXT://{_LOOPBACK}:0", **arguments, "headrace.controller": join}
    return options if node_id is None else {**options, "node.id": node_id}

"""headrace doctor: what is there, what is missing, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headrace.cli.connection import Connection, connection_options
from headrace.cli.findings import Finding, Status, ok
from headrace.cli.output import EXIT_FAILED, command_errors, debug_option, emit, format_option

if TYPE_CHECKING:
    from headrace.client.addresses import Endpoint

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@click.command()
@click.option("--spark", "starts_spark", is_flag=True, help="Start Spark too, which takes some seconds.")
@connection_options
@format_option
@debug_option
@command_errors
def doctor(connection: Connection, starts_spark: bool, output_format: str, debug: bool) -> None:
    """Look for what keeps headrace from working: on this machine, and on the way to the brokers.

    This machine: Python, the compiled kernel, pyarrow, Spark, Java. Every address of -b: does the name resolve, does
    the port take connections, is it Kafka that answers, TLS, SASL, the login, and can the addresses be reached that
    the cluster tells its clients? No broker is started for it. Nothing is written anywhere.

    \b
    headrace doctor
    headrace doctor -b kafka1:9092,kafka2:9092 --config client.properties

    \b
    Exit codes: 0 all is well, or there are warnings only; 1 something failed; 2 wrong usage; 130 interrupted.
    """
    findings: list[Finding] = []
    for finding in _all(connection, starts_spark):
        _take(finding, findings, output_format)
    failed = sum(finding.failed for finding in findings)
    warned = sum(finding.status is Status.WARN for finding in findings)
    facts = {"ok": not failed, "findings": [finding.to_json() for finding in findings]}
    emit(output_format, facts, f"{len(findings)} checks: {failed} failed, {warned} warnings")
    if failed:
        raise click.exceptions.Exit(EXIT_FAILED)


def _all(connection: Connection, starts_spark: bool) -> Iterator[Finding]:
    from headrace.cli.doctor_machine import check_machine, check_spark_runs

    yield from check_machine()
    if starts_spark:
        yield check_spark_runs()
    yield from _brokers(connection)


def _brokers(connection: Connection) -> Iterator[Finding]:
    bootstrap = connection.find_bootstrap()
    if bootstrap is None:
        yield ok("broker", "none runs on the default data folder; -b HOST:PORT looks at others")
        return
    from headrace.cli.doctor_broker import check_brokers
    from headrace.client.addresses import parse

    endpoints: list[Endpoint] = parse(bootstrap)
    yield from check_brokers(endpoints, connection.client_settings())


def _take(finding: Finding, findings: list[Finding], output_format: str) -> None:
    """Keep a finding; people see it at once, for the next one may take seconds."""
    findings.append(finding)
    if output_format == "text":
        status = click.style(f"{finding.status.value:<4}", fg=_COLOURS[finding.status])
        click.echo(f"{status}  {finding.check}: {finding.found}")
        if finding.remedy:
            click.echo(f"      → {finding.remedy}")

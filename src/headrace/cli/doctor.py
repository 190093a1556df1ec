"""headrace doctor: check this machine and the connection to the brokers."""

from __future__ import annotations

from collections.abc import Iterator

import click

from headrace.cli.connection import ClusterConnection, cluster_command
from headrace.cli.doctor_broker import check_brokers
from headrace.cli.doctor_machine import Finding, Status, check_machine, ok
from headrace.cli.doctor_spark import check_spark_runs
from headrace.cli.errors import EXIT_FAILED
from headrace.cli.output import emit
from headrace.client.addresses import parse

_COLORS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@click.command()
@click.option("--spark", "starts_spark", is_flag=True, help="Also start Spark as a job would, and check its workers.")
@cluster_command
def doctor(connection: ClusterConnection, starts_spark: bool, output_format: str) -> None:
    """Check this machine and the connection to the brokers.

    This machine: Python, the compiled kernel, pyarrow, Spark, Java. Every address of -b: DNS, TCP, whether a Kafka
    broker responds, TLS, SASL, authentication, and whether the addresses that the cluster advertises are reachable. No
    broker is started, and nothing is written.

    With --spark also: Spark is started as by a job with its own session, and must find format("headrace"). Its workers
    must have the same version of headrace. This ends after two minutes at the latest.

    \b
    headrace doctor
    headrace doctor -b kafka1:9092,kafka2:9092 --config client.properties

    \b
    Exit codes: 0 no failures, possibly warnings; 1 a check failed; 2 invalid usage; 130 interrupted.
    """
    findings: list[Finding] = []
    for finding in _run_checks(connection, starts_spark):
        findings.append(finding)
        if output_format == "text":  # at once: the next check may take seconds
            _print(finding)
    failed = sum(finding.failed for finding in findings)
    warned = sum(finding.status is Status.WARN for finding in findings)
    facts = {"ok": not failed, "findings": [finding.to_json() for finding in findings]}
    emit(output_format, facts, f"{len(findings)} checks: {failed} failed, {warned} warnings")
    if failed:
        raise click.exceptions.Exit(EXIT_FAILED)


def _run_checks(connection: ClusterConnection, starts_spark: bool) -> Iterator[Finding]:
    yield from check_machine()
    if starts_spark:
        yield from check_spark_runs()
    bootstrap = connection.find_bootstrap()
    if bootstrap is None:
        yield ok("broker", "none runs on the default data folder; use -b HOST:PORT to check others")
        return
    yield from check_brokers(parse(bootstrap), connection.client_settings())


def _print(finding: Finding) -> None:
    status = click.style(f"{finding.status.value:<4}", fg=_COLORS[finding.status])
    click.echo(f"{status}  {finding.check}: {finding.fact}")
    if finding.remedy:
        click.echo(f"      → {finding.remedy}")

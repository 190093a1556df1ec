"""Kafka's own clients and tools, in one Java process: the client program in tests/either/clients/java."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tests.support.peers import java
from tests.support.peers.clients import ProgramClient
from tests.support.peers.java import JavaRunner
from tests.support.peers.program import Program

SOURCE = Path(__file__).parents[2] / "either" / "clients" / "java" / "Driver.java"
TOOLS = "org.apache.kafka.tools"


class ToolRun(NamedTuple):
    """The output and exit code of a tool."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class JavaClient(ProgramClient):
    def __init__(self, program: Program, jars: Path) -> None:
        super().__init__(program)
        self._jars = jars

    def look(self, bootstrap: str, topic: str, *, offset: int, time_ms: int) -> dict[str, Any]:
        """Return the positions that the consumer reports for partition 0."""
        return dict(self._program("look", bootstrap=bootstrap, topic=topic, offset=offset, time=time_ms))

    def admin(self, area: str, bootstrap: str, **arguments: Any) -> dict[str, Any]:
        """Run the admin client for one area, and return its results."""
        return dict(self._program("admin", area=area, bootstrap=bootstrap, **arguments))

    def tool(self, main: str, *args: object, stdin: str = "", may_fail: bool = False) -> ToolRun:
        """Run the main method of a command line tool, in the process there is."""
        name = main if main.startswith("kafka.") else f"{TOOLS}.{main}"
        result = self._program("tool", main=name, args=[str(arg) for arg in args], stdin=stdin)
        run = ToolRun(result["code"], result["out"], result["err"])
        assert may_fail or run.code == 0, f"{main} ended with {run.code}:\n{run.out}\n{run.err}"
        return run

    def tool_alone(self, main: str, *args: object) -> ToolRun:
        """Run a tool in a separate process: some print the rest only when the process ends."""
        command = java.java_command(
            self._jars, f"{TOOLS}.{main}", *(str(arg) for arg in args), options=java.SHORT_LIVED
        )
        return ToolRun(0, java.run(command), "")


def make_java_client(runner: JavaRunner, jars: Path) -> JavaClient:
    """The client; the process starts with its first command."""
    return JavaClient(Program("Java", lambda: runner.command(jars, SOURCE)), jars)

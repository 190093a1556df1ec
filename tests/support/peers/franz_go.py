"""franz-go: the client program in tests/either/clients/go, built once for each version of its sources."""

from __future__ import annotations

from pathlib import Path

from tests.support.peers import fetched
from tests.support.peers.clients import ProgramClient
from tests.support.peers.program import Program

SOURCES = Path(__file__).parents[2] / "either" / "clients" / "go"


def make_franz_go() -> ProgramClient:
    """The client; without Go the test is skipped."""
    program = str(franz_go_program())
    return ProgramClient(Program("franz-go", lambda: [program]))


def franz_go_program() -> Path:
    """The path of the program; without Go the test is skipped."""
    return fetched.fetched(_name(), _build, others="franzgo-*") / "client"


def is_built() -> bool:
    """Return whether it is built already."""
    return (fetched.CACHE / _name()).exists()


def _name() -> str:
    return f"franzgo-{fetched.digest(SOURCES)}"


def _build(folder: Path) -> None:
    fetched.require("go", purpose="tests with franz-go")
    folder.mkdir()
    fetched.run(
        ["go", "build", "-o", str(folder / "client"), "."],
        "Go could not build the franz-go client",
        cwd=SOURCES,
        env={"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"},
    )

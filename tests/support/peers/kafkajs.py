"""KafkaJS, on Node: the client program in tests/either/clients/js."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.peers import fetched
from tests.support.peers.clients import ProgramClient
from tests.support.peers.program import Program

SOURCES = Path(__file__).parents[2] / "either" / "clients" / "js"
VERSION = "2.2.4"
NAME = f"kafkajs-{VERSION}"
_LISTS = ("package.json", "package-lock.json")


class KafkaJs(ProgramClient):
    codecs: Sequence[str] = ("none", "gzip")  # the others need more packages


def make_kafkajs() -> KafkaJs:
    """The client; without Node the test is skipped."""
    fetched.require("node", purpose="tests with KafkaJS")
    modules = fetched.fetched(NAME, _install) / "node_modules"
    environment = {**os.environ, "NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return KafkaJs(Program("KafkaJS", lambda: ["node", str(SOURCES / "client.js")], environment))


def is_installed() -> bool:
    """Return whether it is downloaded already."""
    return (fetched.CACHE / NAME).exists()


def _install(folder: Path) -> None:
    fetched.require("npm", purpose="tests with KafkaJS")
    folder.mkdir()
    for name in _LISTS:
        shutil.copy(SOURCES / name, folder)
    fetched.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], "npm could not fetch KafkaJS", cwd=folder)

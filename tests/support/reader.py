"""Runs the blocks of documentation pages as a user would: in an interpreter, a file or a shell, in order.

    page → Reader.read → a new broker, an empty folder → each block → AssertionError for the first that fails

A reader has one folder and one interpreter for all pages, so that Spark is started once. `localhost:9092` in the pages
is replaced by the address of the broker, which stands for the one of `headrace broker start`, and
`http://localhost:8081` by the URL of a schema registry.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from headrace.broker import EmbeddedBroker
from tests.support.doc_pages import PROJECT, REGISTRY_ADDRESS, Block, blocks_of

ADDRESS = "localhost:9092"
BLOCK_SECONDS_MAX = 240
COMMAND_SECONDS_MAX = 240
STOP_SECONDS_MAX = 20
SHOWN_MAX = 3000
"""Characters of a log in an error."""
PYTHON = "HEADRACE_DOCS_PYTHON"
"""Environment variable with another interpreter, such as that of an environment with the wheel only."""
NOT_RUN = ("make", "pip")
"""Commands that are checked but not run: they take minutes, and change the machine."""
RUN = ("headrace", "python", "echo", "printf", "mkdir", "cat")
_INTERPRETER = Path(__file__).with_name("page_interpreter.py")
_BROKER_START = "headrace broker start"
_OURS = re.compile(r"HEADRACE_|PYTEST_|PYTHONPATH$")


def python() -> Path:
    """Return the interpreter to use."""
    return Path(os.environ.get(PYTHON, sys.executable))


class Reader:
    """Runs pages in a folder that is emptied before each."""

    def __init__(self, folder: Path, registry_url: str = REGISTRY_ADDRESS) -> None:
        self._folder = folder
        self._registry_url = registry_url
        self._here = folder / "here"  # the working folder, also of Spark's JVM
        self._state = folder / "state"
        self._log = folder / "interpreter.log"
        self._broker: EmbeddedBroker | None = None
        self._child: subprocess.Popen[str] | None = None
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self._here.mkdir(parents=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave_page()
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            _end(self._child)

    def read(self, page: Path) -> None:
        """Run all blocks of a page."""
        self._begin_page()
        try:
            self._fresh = True
            for block in blocks_of(page):
                self._run_block(block)
        finally:
            self._leave_page()

    def _begin_page(self) -> None:
        for old in self._here.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.rmtree(self._state, ignore_errors=True)
        # In the folder of `headrace broker start`, where other commands look for it.
        self._broker = EmbeddedBroker(data_dir=self._state / "headrace" / "broker").start()

    def _leave_page(self) -> None:
        for process in self._started:
            process.send_signal(signal.SIGTERM)
            _end(process)
        self._started.clear()
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    # -- blocks ----------------------------------------------------------------------------------

    def _run_block(self, block: Block) -> None:
        text = self._addressed(block.text)
        if block.language == "sh":
            for command in commands_of(text):
                self._shell(block, command)
        elif block.file_name is not None:
            self._write_file(block.file_name, text)
            if block.has_tests:
                self._run_tests(block, block.file_name)
        elif block.has_tests:
            self._write_file("test_page.py", text)
            self._run_tests(block, "test_page.py")
        elif block.language == "python":
            self._python(block, text)
        else:
            assert block.language in ("text", "json"), f"{block.location}: its first line must name the file"

    def _addressed(self, text: str) -> str:
        assert self._broker is not None
        return text.replace(ADDRESS, self._broker.bootstrap).replace(REGISTRY_ADDRESS, self._registry_url)

    def _write_file(self, name: str, text: str) -> None:
        file = self._here / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def _run_tests(self, block: Block, name: str) -> None:
        self._run(block, [str(python()), "-m", "pytest", "-q", "-p", "no:cacheprovider", name])

    def _run(self, block: Block, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self._here,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
        )
        output = f"{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"{block.location}: {command[-1]}\nexit code {done.returncode}\n{output}"

    # -- Python ----------------------------------------------------------------------------------

    def _python(self, block: Block, text: str) -> None:
        child = self._child = self._child or self._interpreter()
        assert child.stdin is not None
        assert child.stdout is not None
        block_request = {"page": str(block.page), "line": block.line, "text": text, "fresh": self._fresh}
        self._fresh = False
        print(json.dumps(block_request), file=child.stdin, flush=True)
        ready, _, _ = select.select([child.stdout], [], [], BLOCK_SECONDS_MAX)
        reply = child.stdout.readline() if ready else ""
        if not reply:
            child.kill()
            self._child = None
            why = f"is not done after {BLOCK_SECONDS_MAX} s" if not ready else "has ended the interpreter"
            raise AssertionError(f"{block.location}: this {why}\n{self._log_tail()}")
        error = json.loads(reply)["error"]
        assert error is None, f"{block.location}\n{error}\n{self._log_tail()}"

    def _interpreter(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            return subprocess.Popen(
                [str(python()), str(_INTERPRETER)],
                cwd=self._here,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _log_tail(self) -> str:
        broker = "" if self._broker is None else self._broker.log_text
        return f"{self._log.read_text(errors='replace')[-SHOWN_MAX:]}\n{broker[-SHOWN_MAX:]}"

    # -- the shell -------------------------------------------------------------------------------

    def _shell(self, block: Block, command: str) -> None:
        first = shlex.split(command, comments=True)[0]
        if first in NOT_RUN:
            check_unrun(block, command)
            return
        assert first in RUN, f"{block.location}: {first} is not run here; mark the block as text"
        if command in (_BROKER_START, f"{_BROKER_START} --schema-registry"):
            return  # started with the page; the registry is that of the test
        if command.startswith(_BROKER_START):
            self._start(block, command)
            return
        self._run(block, ["bash", "-c", f"set -o pipefail; {command}"])

    def _start(self, block: Block, command: str) -> None:
        """Start a broker as in another terminal, and wait for its ready line."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._here,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], STOP_SECONDS_MAX)
        line = process.stdout.readline() if ready else ""
        assert "ready" in line, f"{block.location}: {command}\nis not ready: {line!r}"

    def _environment(self) -> dict[str, str]:
        """Return an environment without settings of the tests, and with the interpreter's folder first on the PATH."""
        kept = {
            name: value for name, value in os.environ.items() if not re.match(r"HEADRACE_|PYTEST_|PYTHONPATH$", name)
        }
        return {
            **kept,
            "PATH": f"{python().parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": str(self._state),
            "NO_COLOR": "1",
        }


def commands_of(text: str) -> list[str]:
    """Return the commands of a block: its lines without comments, joined at backslashes."""
    joined = text.replace("\\\n", " ")
    lines = (re.sub(r"\s+# .*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def check_unrun(block: Block, command: str) -> None:
    """Check that a command that is not run names existing targets and extras."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        makefile = (PROJECT / "Makefile").read_text()
        for target in (word for word in words[1:] if "=" not in word):
            assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"{block.location}: no target {target}"
    else:
        pyproject = (PROJECT / "pyproject.toml").read_text()
        for extra in re.findall(r"(?:headrace|\.)\[([\w,]+)\]", command):
            for name in extra.split(","):
                assert re.search(rf"^{name} = \[", pyproject, re.MULTILINE), f"{block.location}: no extra {name}"


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS_MAX)

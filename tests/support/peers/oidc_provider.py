"""An OIDC provider that others wrote: the npm package oidc-provider, in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.peers import fetched
from tests.support.peers.real_kafka import GUARD, free_ports
from tests.support.waiting import eventually

SOURCES = Path(__file__).parents[2] / "kafka" / "js"
NAME = "oidc-provider-8.8.1"
CLIENT_ID, CLIENT_SECRET, SCOPE, AUDIENCE = "orders", "sesame", "kafka", "kafka"
START_SECONDS_MAX = 30


class OidcProvider:
    """A running provider with one client."""

    def __init__(self, lifetime_seconds: int) -> None:
        fetched.require("node", purpose="tests with an OIDC provider")
        modules = fetched.fetched(NAME, _install)
        (port,) = free_ports(1)
        self.issuer = f"http://127.0.0.1:{port}"
        self.token_url = f"{self.issuer}/token"
        self.keys_url = f"{self.issuer}/jwks"
        self._process = subprocess.Popen(
            [*GUARD, "node", str(modules / "provider.mjs"), str(port), str(lifetime_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            eventually("the OIDC provider", self._is_responding, START_SECONDS_MAX)
        except BaseException:
            self.close()
            raise

    def pause(self) -> None:
        """Stop responding, as a provider that hangs."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(START_SECONDS_MAX)

    def _is_responding(self) -> bool:
        try:
            with urlopen(self.keys_url, timeout=1) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False


def _install(folder: Path) -> None:
    fetched.require("npm", purpose="tests with an OIDC provider")
    folder.mkdir()
    for name in ("package.json", "package-lock.json", "provider.mjs"):
        shutil.copy(SOURCES / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    fetched.run(command, "npm could not fetch oidc-provider", cwd=folder)

"""`headrace ui` in a separate process, a browser for its pages, and screenshots."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from playwright.sync_api import Browser, Page, Request, sync_playwright

from tests.support.shell import HEADRACE, environment

START_SECONDS_MAX = 40
STOP_SECONDS_MAX = 20
ACTION_MS_MAX = 15_000
WIDTHS = (1280, 1920)
HEIGHT = 1000
SHOTS = Path("build/ui")
ALL_SCHEMES = os.environ.get("HEADRACE_UI_SHOTS") == "all"  # `make test-ui`
SCHEMES: dict[int, tuple[Literal["light", "dark"], ...]] = {
    1280: ("light", "dark") if ALL_SCHEMES else ("light",),
    1920: ("light", "dark") if ALL_SCHEMES else ("dark",),
}


def chromium() -> str | None:
    """Return the path of Chromium, None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class LiveView:
    """A running view."""

    def __init__(self, bootstrap: str, *arguments: object, data_dir: Path | None = None) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        folder = () if data_dir is None else ("--data-dir", str(data_dir))
        listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
        command = [*HEADRACE, "ui", "-b", bootstrap, *listen, *folder, "--format", "json", *map(str, arguments)]
        self.process = subprocess.Popen(
            [*command, "--until-stdin-closes"],  # so that it ends with a killed test
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(Path(tempfile.gettempdir())),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(START_SECONDS_MAX)
            raise RuntimeError(f"the view did not start: {self.log_text}")
        self.facts: dict[str, Any] = json.loads(line)
        self.url: str = self.facts["url"]

    @property
    def log_text(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> int:
        """Stop the view as Ctrl-C does; fail if it logged a traceback."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_SECONDS_MAX)
        finally:
            self.process.kill()
            self.process.wait(STOP_SECONDS_MAX)
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            self.process.stdout.close()
        log_text = self.log_text
        self._log.close()
        assert "Traceback" not in log_text, log_text
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class Watch:
    """Errors of a page, and its requests."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("request", self._on_request)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            self.requests.append(request.url)

    def check(self) -> None:
        assert not self.errors, self.errors
        foreign = [url for url in self.requests if "://127.0.0.1:" not in url and "://localhost:" not in url]
        assert not foreign, foreign


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_tab(browser: Browser, url: str) -> Iterator[tuple[Page, Watch]]:
    """A tab without cookies; paths are relative to the view."""
    context = browser.new_context(base_url=url, viewport={"width": WIDTHS[0], "height": HEIGHT})
    context.set_default_timeout(ACTION_MS_MAX)
    try:
        page = context.new_page()
        yield page, Watch(page)
    finally:
        context.close()


def shoot(page: Page, name: str, folder: Path = SHOTS) -> None:
    """Take screenshots of a page, narrow and wide, light and dark; fail if elements overlap."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": HEIGHT})
            for scheme in SCHEMES[width]:
                page.emulate_media(color_scheme=scheme)
                page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
            assert not (overlaps := page.evaluate(_OVERLAPS)), (name, width, overlaps)
    finally:
        page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
        page.emulate_media(color_scheme="light")


_OVERLAPS = """() => {
  const overlaps = [];
  const root = document.documentElement;
  const excess = root.scrollWidth - root.clientWidth;
  if (excess > 0) overlaps.push(`the page is ${excess} px too wide`);
  const shown = "main :is(button, input, select, textarea, a, h1, h2, .hr-tile, .hr-problem, td, th), header *, nav a";
  const parts = [...document.querySelectorAll(shown)].filter(e => e.checkVisibility() && !e.closest("svg"))
    .map(e => [e, e.getBoundingClientRect()]).filter(([_, r]) => r.width > 1 && r.height > 1 && r.right > 0);
  const named = e => `${e.tagName.toLowerCase()} ${(e.innerText || e.getAttribute("aria-label") || "").slice(0, 30)}`;
  for (let i = 0; i < parts.length; i++) {
    const [a, r] = parts[i];
    for (let j = i + 1; j < parts.length; j++) {
      const [b, s] = parts[j];
      if (a.contains(b) || b.contains(a)) continue;
      const wide = Math.min(r.right, s.right) - Math.max(r.left, s.left);
      const high = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
      if (wide > 2 && high > 2) overlaps.push(`${named(a)} and ${named(b)}`);
    }
  }
  return overlaps.slice(0, 10);
}"""

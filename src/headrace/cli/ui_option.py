"""--ui: the live view beside what a command runs."""

from __future__ import annotations

import click

LISTEN_DEFAULT = "127.0.0.1:9080"
LOOPBACK = ("127.", "localhost:", "[::1]:")

ui_option = click.option(
    "--ui",
    "ui_listen",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value=LISTEN_DEFAULT,
    help=f"Show it in the browser, live, at {LISTEN_DEFAULT} if nothing else is said: see `headrace ui`.",
)

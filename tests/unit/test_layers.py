"""The import contracts of pyproject.toml hold, and would notice if they did not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
SOURCES = PROJECT.parent / "src"
LAYERS = (
    *(
        "errors",
        "types",
        "config",
        "wire",
        "schema",
        "broker",
        "client",
        "telemetry",
        "producer",
        "legacy",
        "spark",
        "demo",
    ),
    *("cli", "ui"),
)


def lint(sources: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Check the package under `sources`: a process of its own, for imports are looked up on sys.path."""
    code = (
        "import sys; from importlinter.cli import lint_imports;"
        f" sys.exit(lint_imports({str(PROJECT)!r}, no_cache=True, no_logo=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
    )


def plant(root: Path, imports: dict[str, str]) -> Path:
    """A package with every layer there is to be; `imports` says which layer imports what."""
    for layer in LAYERS:
        folder = root / "headrace" / layer
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(imports.get(layer, ""))
    (root / "headrace" / "__init__.py").write_text("")
    return root


def test_the_package_keeps_its_layers(tmp_path):
    done = lint(SOURCES, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_whole_house_as_designed_is_allowed(tmp_path):
    imports = {
        "wire": "import headrace.errors, headrace.types",
        "client": "import headrace.wire, headrace.config",
        "telemetry": "import headrace.client",
        "producer": "import headrace.client, headrace.telemetry",
        "legacy": "import headrace.producer",
        "spark": "import headrace.producer",
        "broker": "import headrace.wire, headrace.config",
        "demo": "import headrace.spark, headrace.broker",
        "cli": "import headrace.spark, headrace.broker, headrace.demo, headrace.ui",
        "ui": "import headrace.producer, headrace.telemetry",
    }
    done = lint(plant(tmp_path, imports), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("layer", "imported"),
    [
        ("wire", "headrace.client"),
        ("wire", "headrace.config"),
        ("wire", "threading"),
        ("errors", "headrace.wire"),
        ("types", "headrace.wire"),
        ("client", "headrace.producer"),
        ("telemetry", "headrace.producer"),
        ("producer", "headrace.spark"),
        ("producer", "headrace.broker"),
        ("spark", "headrace.broker"),
        ("spark", "headrace.cli"),
        ("spark", "headrace.demo"),
        ("demo", "headrace.cli"),
        ("broker", "headrace.client"),
        ("ui", "headrace.cli"),
        ("ui", "headrace.broker"),
        ("demo", "headrace.ui"),
    ],
)
def test_an_import_against_the_current_is_caught(tmp_path, layer, imported):
    done = lint(plant(tmp_path, {layer: f"import {imported}"}), tmp_path)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout
    assert f"headrace.{layer}" in done.stdout, done.stdout + done.stderr


def test_a_module_without_a_place_in_the_layers_is_caught(tmp_path):
    root = plant(tmp_path, {})
    (root / "headrace" / "stray.py").write_text("")
    done = lint(root, tmp_path)
    assert done.returncode == 1
    assert "stray" in done.stdout, done.stdout + done.stderr


IMPURE = re.compile(
    r"\b(?:clock_gettime|gettimeofday|pthread\w*|sendmsg|recv\w*|select|poll)\b"
    r"|\b(?:time|socket|pthread|threads|unistd)\.h\b|\blibc\.time\b"
    r"|\b(?:from|import|cimport)\s+(?:asyncio|selectors|socket|ssl|threading|time)\b"
)
IMPORT = re.compile(r"^\s*(?:from|cimport|import)\s+(headrace\.[\w.]+)", re.MULTILINE)


def compiled_sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix in (".pyx", ".pxi", ".pxd", ".h")]


def test_compiled_wire_code_has_no_socket_thread_or_clock():
    sources = compiled_sources(SOURCES / "headrace" / "wire")
    assert len(sources) >= 5
    for path in sources:
        assert not IMPURE.search(path.read_text()), path.name


@pytest.mark.parametrize(
    "line",
    [
        'cdef extern from "time.h" nogil:',
        "    clock_gettime(CLOCK_REALTIME, &now)",
        "import threading",
        "from time import monotonic",
        "from libc.time cimport time",
    ],
)
def test_the_purity_check_sees_clocks_and_threads(line):
    assert IMPURE.search(line)


def test_compiled_modules_import_lower_layers_only():
    allowed = {
        "wire": {"errors", "wire"},
        "client": {"errors", "wire", "client"},
        "producer": {"errors", "wire", "client", "producer"},
    }
    for path in compiled_sources(SOURCES / "headrace"):
        layer = path.relative_to(SOURCES / "headrace").parts[0]
        imported = {name.split(".")[1] for name in IMPORT.findall(path.read_text())}
        assert imported <= allowed[layer], path.name

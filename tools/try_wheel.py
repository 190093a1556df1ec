"""Test the wheel in an empty environment with README.md and examples/.

    dist/*.whl → a fresh environment → pytest tests/docs, with that environment's interpreter as the reader's

Needs the network, for what the wheel depends on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "spark,cli"
ALSO = ("pytest>=9.2",)  # for the README's test
MINUTES_MAX = 20
TESTS = ("tests/docs/test_pages.py", "tests/docs/test_examples.py")


def main() -> None:
    (wheel,) = Path(sys.argv[1]).resolve().glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="headrace-wheel-") as folder:
        python = Path(folder) / "bin" / "python"
        run(sys.executable, "-m", "venv", folder)
        run(str(python), "-m", "pip", "install", "--quiet", f"{wheel}[{EXTRAS}]", *ALSO)
        path = subprocess.check_output(
            [python, "-c", "import headrace; print(headrace.__file__)"], cwd=folder, text=True
        )
        if not path.startswith(folder):
            sys.exit(f"the environment imports headrace from {path.strip()}, and not from the wheel")
        environment = {**os.environ, "HEADRACE_DOCS_PYTHON": str(python)}
        run(sys.executable, "-m", "pytest", *TESTS, "-k", "README or example", cwd=ROOT, env=environment)


def run(*command: str, **how: object) -> None:
    done = subprocess.run(command, timeout=MINUTES_MAX * 60, **how)  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    main()

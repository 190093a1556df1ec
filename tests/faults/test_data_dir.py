"""Damaged data folders: a short run of `make fuzz-data-dir`.

HEADRACE_FUZZ_CASES is the number of cases; HEADRACE_FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CASES = int(os.environ.get("HEADRACE_FUZZ_CASES", "60"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "17"))


@pytest.mark.behaviour("B17")
@pytest.mark.timeout(120 + 5 * CASES)
def test_damage_to_a_data_folder_is_reported_and_deletes_nothing() -> None:
    # In a separate process without threads, because each case is a fork.
    command = [sys.executable, "-m", "bench.fuzz_data_dir", "--cases", str(CASES), "--seed", str(SEED)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=100 + 5 * CASES, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"{CASES} cases in" in finished.stdout

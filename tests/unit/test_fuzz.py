"""Every decoder on mutated inputs; `make fuzz-wire` does a million of them."""

from __future__ import annotations

import pytest

from bench import fuzz_wire

pytestmark = pytest.mark.both_kernels


def test_mutated_inputs_only_ever_raise_our_errors_and_stay_small_and_quick():
    result = fuzz_wire.run(inputs=40_000, seed=20_26)
    assert result.failures == []
    assert result.inputs == 40_000
    assert result.errors["MalformedError"] > 10_000
    assert 0 < result.memory_bytes_max <= fuzz_wire.SMALL_INPUT_MEMORY_BYTES


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        (lambda data: 1 / 0, "ZeroDivisionError"),
        (lambda data: bytearray(1_000_000), "bytes of memory"),
    ],
    ids=["foreign error", "memory"],
)
def test_the_fuzzer_notices(decode, words):
    result = fuzz_wire.Result()
    fuzz_wire._feed(fuzz_wire.Target("planted", decode, b""), b"data", result, trace=True)
    assert words in result.failures[0]

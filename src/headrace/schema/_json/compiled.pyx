# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, embedsignature=True
"""The JSON codec, compiled: PlanDecoder and PlanEncoder around the loops of `decode.h` and `encode.h`.

`reference/` defines what it does.
"""

from libc.stdint cimport uint64_t

include "../_plan/codec.pxi"

cdef extern from "floats.h":
    int HR_POWER_MIN, HR_POWER_MAX
    uint64_t hr_powers[][2]
    int hr_start_floats()


def _fill_powers():
    """Fill the table of powers of ten: 128 bits each, rounded down."""
    for exponent in range(HR_POWER_MIN, HR_POWER_MAX + 1):
        if exponent >= 0:
            power = 10**exponent
            shift = power.bit_length() - 128
            bits = power >> shift if shift >= 0 else power << -shift
        else:
            divisor = 10**-exponent
            bits = (1 << (divisor.bit_length() + 128)) // divisor
            bits >>= bits.bit_length() - 128
        hr_powers[exponent - HR_POWER_MIN][0] = bits >> 64
        hr_powers[exponent - HR_POWER_MIN][1] = bits & 0xFFFFFFFFFFFFFFFF


_fill_powers()
if hr_start_floats():
    raise MemoryError()

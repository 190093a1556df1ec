# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, embedsignature=True
"""The Protobuf codec, compiled: PlanDecoder and PlanEncoder around the loops of `decode.h` and `encode.h`.

`reference/` defines what it does.
"""

include "../_plan/codec.pxi"

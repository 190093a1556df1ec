"""The Avro codec in plain Python: the definition of what `compiled.pyx` does, and its stand-in without a compiler."""

from headrace.schema._avro.reference.decoding import PlanDecoder
from headrace.schema._avro.reference.encoding import PlanEncoder

__all__ = ["PlanDecoder", "PlanEncoder"]

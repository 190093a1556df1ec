"""The Protobuf codec in plain Python: it defines what `compiled.pyx` does, and replaces it without a compiler."""

from headrace.schema._protobuf.reference.decoding import PlanDecoder
from headrace.schema._protobuf.reference.encoding import PlanEncoder

__all__ = ["PlanDecoder", "PlanEncoder"]

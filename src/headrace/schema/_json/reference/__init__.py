"""The JSON codec in plain Python: the definition of what `compiled.pyx` does, and its stand-in without a compiler."""

from headrace.schema._json.reference.decoding import PlanDecoder
from headrace.schema._json.reference.encoding import PlanEncoder

__all__ = ["PlanDecoder", "PlanEncoder"]

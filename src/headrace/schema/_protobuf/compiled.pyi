# The compiled module has the names and signatures of the Python reference; a test compares them.
from headrace.schema._protobuf.reference import PlanDecoder as PlanDecoder
from headrace.schema._protobuf.reference import PlanEncoder as PlanEncoder

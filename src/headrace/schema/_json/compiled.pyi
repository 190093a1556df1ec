# The compiled module has the names and signatures of the Python reference; a test compares them.
from headrace.schema._json.reference import PlanDecoder as PlanDecoder
from headrace.schema._json.reference import PlanEncoder as PlanEncoder

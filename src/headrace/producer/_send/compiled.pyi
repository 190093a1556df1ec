# The compiled module has the names and signatures of the Python reference; a test compares them.
from headrace.producer._send.reference import FastSend as FastSend
from headrace.producer._send.reference import RecordFuture as RecordFuture
from headrace.producer._send.reference import TopicAppender as TopicAppender
from headrace.producer._send.reference import run_callbacks as run_callbacks

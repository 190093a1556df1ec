"""The producer: a record's way from `send` to the broker.

options, settings                                           options, checked and typed
records                                                     the values that a producer takes and returns
producer, aio, mock                                         Producer, AsyncProducer, MockProducer
engine, _send                                               the engine below them, and the compiled fast path
pipeline, interceptors, serializers, partitioners, plugins  what happens to a record before it is queued
arrow                                                       the same for Arrow columns
accumulator, queues, batch, buffer_pool                     queued records
sender, transactions, transaction_*, sequences              the I/O thread
metrics                                                     metrics; what all clients have is in telemetry
"""

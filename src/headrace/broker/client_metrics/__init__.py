"""Metrics that clients push to the broker (KIP-714).

options.py     the options of a subscription (resource type CLIENT_METRICS), and the clients that it matches
instances.py   client instances: their subscriptions, when they may push, and the metrics they pushed last
otlp.py        OTLP, the protobuf format of pushed metrics
exposition.py  all metrics in the text format of Prometheus, and the HTTP listener for it

AlterConfigs → catalog → Subscription ─┐
GetTelemetrySubscriptions ─────────────┴─► ClientInstance: metrics, interval
PushTelemetry → decompress, otlp.decode (on a thread) ─► ClientInstance.points ─► control socket, /metrics
"""

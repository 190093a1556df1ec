"""Telemetry: metrics of clients, and the reports that producers and Spark pipelines send to the live view.

metrics.py     metrics of clients: names, values, plug-ins that get them
reporters.py   such plug-ins: Prometheus, the log
models.py      the reports, declared once as dataclasses; sender and receiver share them
codec.py       dataclass ↔ JSON, with bounds on everything that is received
sender.py      the thread that posts reports
listeners.py   the interfaces by which producers and the Spark sink are observed
"""

"""Telemetry: the reports that producers and Spark pipelines send to the live view.

models.py   the reports, declared once as dataclasses; sender and receiver share them
codec.py    dataclass ↔ JSON, with bounds on everything that is received
"""

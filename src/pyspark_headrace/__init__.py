"""Spark looks for data sources in modules of this name: `format("headrace")` finds this one, without registration."""

from headrace.spark.datasource import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""Trace readers: containers (CSV, JSON, Parquet) to raw columns, formats as data, one place that judges."""

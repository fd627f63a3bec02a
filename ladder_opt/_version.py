"""The one place that holds the version (semantic versioning)."""

__version__ = "0.1.0"

"""Tools for the repository: its documentation."""

"""Measurements of a server to a cost model: a reader for each kind of file, and the fits behind them."""

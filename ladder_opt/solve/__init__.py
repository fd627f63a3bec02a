"""Solve for ladders: the problem, the product solver, pricing, and the independent check."""

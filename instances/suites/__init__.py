"""Suites to cite, and the generators behind them."""

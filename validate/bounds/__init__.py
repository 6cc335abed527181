"""Lower bounds in exact arithmetic: certificates and the arguments behind them."""

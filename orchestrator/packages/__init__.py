"""Results that travel: packages of figures with the predictions behind them, made and verified."""

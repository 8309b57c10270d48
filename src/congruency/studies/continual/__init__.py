"""The paper's continual-learning tables: their rows, the runs behind them, the page that shows them."""

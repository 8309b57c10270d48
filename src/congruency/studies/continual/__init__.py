"""The paper's continual-learning tables as studies: streams, rows, the batched runner, charts."""

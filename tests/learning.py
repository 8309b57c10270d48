"""What every runnable example owes its reader: it keeps its losses, and they go down.

The one exception is the example on momentum in docs/choosing.md: it shows a divergence, and has a test of its own.
"""

import math

from torch.optim.optimizer import register_optimizer_step_post_hook

SEEDS = range(5)


def assert_learns(losses, where):
    """The last tenth of the losses lies below the first; `losses` is one run or a dict of runs by name."""
    runs = losses if isinstance(losses, dict) else {"": losses}
    assert runs, f"{where} keeps no losses"
    for name, run in runs.items():
        run = [float(loss) for loss in run]
        assert all(math.isfinite(loss) for loss in run), f"{where} {name}: a loss is not finite"
        assert len(run) > 1, f"{where} {name} keeps {len(run)} losses"
        few = max(1, len(run) // 10)
        first, last = sum(run[:few]) / few, sum(run[-few:]) / few
        assert last < 0.9 * first, f"{where} {name}: loss {first:.4g} -> {last:.4g}"


def run_block(code, where, namespace):
    """Execute a block of code; if an optimizer stepped in it, `losses` must be in the namespace and go down.

    Returns how often an optimizer stepped.
    """
    steps = 0

    def count(*_):
        nonlocal steps
        steps += 1

    namespace.pop("losses", None)
    hook = register_optimizer_step_post_hook(count)
    try:
        exec(compile(code, where, "exec"), namespace)
    finally:
        hook.remove()
    if steps or "losses" in namespace:
        assert "losses" in namespace, f"{where} trains and keeps no `losses`:\n{code}"
        assert_learns(namespace["losses"], where)
    return steps

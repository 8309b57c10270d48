"""Seeds that stored results depend on keep their values."""

from congruency.classification.batches import generator
from congruency.seeds import hashed_seed
from congruency.training import Correction, order_seed


def test_seeds_keep_their_values():
    assert hashed_seed(("windows", 0, 0)) == 2781160559109169863  # of the language model's windows
    assert hashed_seed(("windows", 7, 3)) == 6658823632138514310
    assert generator("order", 0, 0).initial_seed() == 6186965015209999505
    assert generator("augment", 3, 2, 1).initial_seed() == 6780122432811810869
    assert order_seed("independent", 0, Correction()) == 1681392115
    assert order_seed("independent", 5, Correction(name="dcl", window=4)) == 1638979429

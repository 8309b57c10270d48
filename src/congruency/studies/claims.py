"""The paper's claims, one by one, each with the comparisons in our results that decide it: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CLAIMS", "Claim", "Comparison", "Evidence", "Variant"]

Expected = Literal["higher", "lower", "same"]


@dataclass(frozen=True)
class Comparison:
    """Rows of one result against others, paired by seed.

    Attributes:
        folder: of ``docs/results``.
        rows: a regular expression that whole names of rows match; its groups, but for those whose names begin with an
            underscore, name the comparison.
        against: the row that each is compared with; may refer to the groups as in ``\\g<base>``.
        metric: in which.
        expected: what the claim says about it: the first is higher, lower, or the two are the same.
        little: for ``"same"``: how large a difference may be and still count as little.
        relative: whether ``little`` is a share of what the other row has.
        versus: what it is compared with, in words, where a claim has several.
        against_metric: the other row's metric, where it is another.
    """

    folder: str
    rows: str
    against: str
    metric: str
    expected: Expected
    little: float | None = None
    relative: bool = False
    versus: str = ""
    against_metric: str | None = None

    def __post_init__(self) -> None:
        if (self.expected == "same") != (self.little is not None):
            raise ValueError(f"little must be given for 'same', and for nothing else, got {self.little}")


@dataclass(frozen=True)
class Variant:
    """Comparisons that are judged together.

    Attributes:
        name: what tells it from the claim's others.
        comparisons: all that bear on it.
    """

    name: str
    comparisons: tuple[Comparison, ...]


Evidence = Literal["descent", "bound"]
"""Results that are not rows and seeds: what ``congruency illustrate`` and ``congruency bound`` write."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper.

    Attributes:
        text: what it says, in our words.
        where: in the paper.
        variants: what decides it, for each reading of the method.
        evidence: a result of another kind that decides it.
        entries: names of the catalogue whose commands would measure it.
    """

    text: str
    where: str
    variants: tuple[Variant, ...] = ()
    evidence: Evidence | None = None
    entries: tuple[str, ...] = ()


CODE = "published code (anchor, margin 0.5)"
EQUATIONS = "equations (concentrate, margin 0)"
_WITH_MARGIN = "equations with the code's margin (concentrate, margin 0.5)"
_WITHOUT_MARGIN = "published code without its margin (anchor, margin 0)"

_LITTLE = {"forward_transfer": 0.01, "congruency": 0.02, "sAUC": 0.002}
"""How large a difference may be and still count as little: of an accuracy, of a cosine, of an area under a curve.

Those of the congruency and of sAUC were fixed before there were results to judge. The paper's own rows lie 0.0001 to
0.0046 of sAUC apart where it speaks of an improvement, and their forward transfer up to 0.04 where it speaks of little
influence.
"""

_CIFAR = ("icifar100", "icifar100_clean", "icifar100_noisy")
_STREAMS = {"mnist_r": "MLP", "mnist_p": "MLP", **dict.fromkeys(_CIFAR, "ResNet")}


def _against_gem(folders: tuple[str, ...], metric: str, expected: Expected) -> tuple[Variant, ...]:
    """DCL with GEM's memory against GEM with the same margin."""
    kinds = {
        CODE: ("anchor", "0.5"), EQUATIONS: ("concentrate", "0"), _WITH_MARGIN: ("concentrate", "0.5"),
        _WITHOUT_MARGIN: ("anchor", "0"),
    }  # fmt: skip
    made = []
    for name, (mode, margin) in kinds.items():
        comparisons = []
        for folder in folders:
            network = _STREAMS[folder]
            gem = "GEM" if network == "MLP" else f"{network} GEM"
            rows = rf"{network} (DCL-\d+-1) MEM, {mode}, margin {margin}"
            against = gem if margin == "0.5" else f"{gem}, margin 0"
            little = _LITTLE[metric] if expected == "same" else None
            comparisons.append(Comparison(folder, rows.replace(".", r"\."), against, metric, expected, little))
        made.append(Variant(name, tuple(comparisons)))
    return tuple(made)


def _short_windows(folder: str, short: int, long: int) -> tuple[Variant, ...]:
    network = _STREAMS[folder]
    kinds = {CODE: "anchor, margin 0.5", EQUATIONS: "concentrate, margin 0", _WITH_MARGIN: "concentrate, margin 0.5"}
    return tuple(
        Variant(
            name,
            (
                Comparison(
                    folder, rf"{network} (DCL-{short}-1) MEM, {kind}".replace(".", r"\."),
                    f"{network} DCL-{long}-1 MEM, {kind}", "accuracy", "higher", versus=f"DCL-{long}-1",
                ),
            ),
        )
        for name, kind in kinds.items()
    )  # fmt: skip


_MEASURED = ("ablation_digits", "cifar10_grid", "cifar100_noisy")
"""Trainings whose congruency and magnitude were measured at every step."""

_GRID_KINDS = {CODE: r"anchor, margin 0\.5", EQUATIONS: "concentrate, margin 0"}


def _grids(
    folders: tuple[str, ...],
    metric: str,
    expected: Expected,
    prefix: str = "",
    scopes: str = "head|all",
    against: str = "baseline",
) -> tuple[Variant, ...]:
    """DCL in our grids of short trainings against the plain training; ``prefix`` names the network."""
    begin, against = (rf"(?P<base>{prefix}), ", rf"\g<base>, {against}") if prefix else ("", against)
    versus = "GEM" if "GEM" in against else ""
    return tuple(
        Variant(
            name,
            tuple(
                Comparison(folder, rf"{begin}(DCL-\w+-1), {kind}, ({scopes})", against, metric, expected, versus=versus)
                for folder in folders
            ),
        )
        for name, kind in _GRID_KINDS.items()
    )  # fmt: skip


_GRIDS_GEM = "GEM, margin 0.5, head"
_WITH_GEM = ("cifar10_grid", "cifar100_noisy")
"""Our grids that have GEM's row, which corrects the last layer: DCL on the last layer is compared with it."""

_REPORTED_KINDS = {CODE: "anchor", EQUATIONS: "concentrate"}


def _reported(
    folder: str, metric: str, expected: Expected, where: str = "", *, gem: bool = True
) -> tuple[Variant, ...]:
    """DCL in what ``congruency report --json`` writes, against the plain training of the same settings, and GEM.

    ``where`` is a regular expression for the settings that it puts behind the methods' names where runs differ in them.
    """
    settings, same = (rf" \(({where})\)", r" (\g<2>)") if where else ("", "")
    others = ("baseline", "GEM") if gem else ("baseline",)
    return tuple(
        Variant(
            name,
            tuple(
                Comparison(
                    folder, rf"(DCL-\S+) {mode}(?:, [^(]*)?{settings}", f"{other}{same}", metric, expected,
                    versus="GEM" if other == "GEM" else "",
                )
                for other in others
            ),
        )
        for name, mode in _REPORTED_KINDS.items()
    )  # fmt: skip


def _orders(*folders: str) -> tuple[Variant, ...]:
    """Trainings in one fixed order of the samples against trainings in an order of their own."""
    methods = {CODE: r"DCL-\S+ anchor[^(]*", EQUATIONS: r"DCL-\S+ concentrate[^(]*", "plain training": "baseline",
               "GEM": "GEM[^(]*"}  # fmt: skip
    return tuple(
        Variant(
            name,
            tuple(
                Comparison(
                    folder, rf"({rows}) \(sample order fixed\)", r"\g<1> (sample order independent)", "congruency",
                    "same", _LITTLE["congruency"],
                )
                for folder in folders
            ),
        )
        for name, rows in methods.items()
    )  # fmt: skip


def _against(row: str, expected: Expected, little: float | None = None) -> tuple[Variant, ...]:
    """What an image costs with DCL, in the three trainings of the table of costs, against a row of it."""
    return tuple(
        Variant(
            name,
            tuple(
                Comparison("cost", rf"(DCL), {kind}", row, metric, expected, little)
                for metric in ("Tiny ImageNet ms", "SALICON ms", "ImageNet ms")
            ),
        )
        for name, kind in _GRID_KINDS.items()
    )


def _costs(folder: str, columns: tuple[int, ...], little: float) -> tuple[Variant, ...]:
    """A table of what an image costs DCL, a column a setting: every column against the first."""
    first, *others = map(str, columns)
    return tuple(
        Variant(
            name,
            tuple(
                Comparison(
                    folder, f"(DCL), {kind}", rf"DCL, {kind}".replace("\\", ""), column, "same", little,
                    relative=True, versus=first, against_metric=first,
                )
                for column in others
            ),
        )
        for name, kind in _GRID_KINDS.items()
    )  # fmt: skip


def _paper_table(folder: str, networks: str, metrics: tuple[str, ...], expected: Expected) -> tuple[Variant, ...]:
    """DCL in a table of classification against the plain training of the same network."""
    return tuple(
        Variant(
            name,
            tuple(
                Comparison(
                    folder, rf"(?P<base>{networks}) (?:SGD )?(DCL\S*), {kind}", r"\g<base> SGD", metric, expected
                )
                for metric in metrics
            ),
        )
        for name, kind in _GRID_KINDS.items()
    )


def _joined(*parts: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """Variants of the same name put together."""
    names = dict.fromkeys(variant.name for part in parts for variant in part)
    return tuple(
        Variant(
            name, tuple(c for part in parts for variant in part if variant.name == name for c in variant.comparisons)
        )
        for name in names
    )


def _saliency(folders: tuple[str, ...]) -> tuple[Variant, ...]:
    endings = {"published code (anchor, margin 0.5)": " anchor", "equations (concentrate, margin 0)": ""}
    return tuple(
        Variant(
            name,
            tuple(
                Comparison(folder, rf"(?P<base>.+ (?:Adam|RMSP)) (DCL-\w+-1){ending}", r"\g<base>", metric, "higher")
                for folder in folders
                for metric in ("NSS", "sAUC", "AUC", "CC")
            ),
        )
        for name, ending in endings.items()
    )


_TINY = "ResNet-50 from scratch|EfficientNet-Lite0 fine-tuned"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        text="The congruency of gradient descent never falls below the bound of Theorem 1.",
        where="Theorem 1, section 4.3",
        evidence="bound",
        entries=("bound",),
    ),
    Claim(
        text="On a surface with several minima DCL makes different learning rates of an optimizer end in the same one.",
        where="Figure 5, section 4.5",
        evidence="descent",
        entries=("illustrate",),
    ),
    Claim(
        text="DCL improves saliency prediction on SALICON in all metrics, with every network and optimizer.",
        where="Table 1, section 5.2.1",
        variants=_saliency(("salicon",)),
        entries=("salicon",),
    ),
    Claim(
        text="Trained on OSIE, networks with DCL predict saliency better.",
        where="Table 2, section 5.2.1 (scored on MIT1003; our `osie` is scored on OSIE's own held-out images)",
        variants=_saliency(("osie_mit1003", "osie")),
        entries=("osie", "osie_study"),
    ),
    Claim(
        text="With GEM's memory DCL improves the accuracy on MNIST rotations, from 83.35 to 84.08 %.",
        where="Table 3, section 5.2.2",
        variants=_against_gem(("mnist_r",), "accuracy", "higher"),
        entries=("mnist_r",),
    ),
    Claim(
        text="With GEM's memory DCL improves the accuracy on MNIST permutations, from 82.44 to 82.58 %.",
        where="Table 4, section 5.2.2",
        variants=_against_gem(("mnist_p",), "accuracy", "higher"),
        entries=("mnist_p",),
    ),
    Claim(
        text="With GEM's memory DCL improves the accuracy on incremental CIFAR-100, from 66.67 to 67.92 %.",
        where="Table 5, section 5.2.2 (ours on clean images only, of which there are fewer)",
        variants=_against_gem(_CIFAR, "accuracy", "higher"),
        entries=("icifar100",),
    ),
    Claim(
        text="Enhancing congruency improves backward transfer on MNIST rotations.",
        where="Table 3, section 5.2.2",
        variants=_against_gem(("mnist_r",), "backward_transfer", "higher"),
        entries=("mnist_r",),
    ),
    Claim(
        text="Enhancing congruency improves backward transfer on MNIST permutations.",
        where="Table 4, section 5.2.2",
        variants=_against_gem(("mnist_p",), "backward_transfer", "higher"),
        entries=("mnist_p",),
    ),
    Claim(
        text="Enhancing congruency improves backward transfer on incremental CIFAR-100.",
        where="Table 5, section 5.2.2",
        variants=_against_gem(_CIFAR, "backward_transfer", "higher"),
        entries=("icifar100",),
    ),
    Claim(
        text="DCL has little influence on forward transfer.",
        where="section 5.2.2 (little: no more than 0.01)",
        variants=_against_gem(("mnist_r", "mnist_p"), "forward_transfer", "same"),
        entries=("mnist_r", "mnist_p"),
    ),
    Claim(
        text="In continual learning a shorter window gives the better accuracy.",
        where="section 5.2.2 (the shortest window of each table against its longest; on incremental CIFAR-100 against "
        "the second, too)",
        variants=_joined(
            _short_windows("mnist_r", 30, 50),
            _short_windows("mnist_p", 3, 5),
            *(_short_windows(folder, 4, long) for folder in _CIFAR for long in (8, 50)),
        ),
        entries=("mnist_r", "mnist_p", "icifar100"),
    ),
    Claim(
        text="DCL makes updates agree better with the gradients of the memory.",
        where="Figure 11, section 6.3.2",
        variants=_against_gem(("mnist_r", "mnist_p", *_CIFAR), "memory_agreement", "higher"),
        entries=("mnist_r", "mnist_p", "icifar100"),
    ),
    Claim(
        text="DCL lowers the test error on CIFAR-10 and CIFAR-100 with every network.",
        where="Table 6, section 5.2.3 (our grids: one small ResNet, in short trainings)",
        variants=_joined(
            _paper_table("cifar", r"ResNeXt-29|DenseNet-100-12|EfficientNet-B1", ("CIFAR-10", "CIFAR-100"), "lower"),
            _grids(("cifar10_grid", "cifar100_noisy"), "test error", "lower"),
        ),
        entries=("cifar", "cifar10_grid", "cifar100_noisy"),
    ),
    Claim(
        text="GEM has a higher test error than plain training in classification.",
        where="Tables 6 and 7, section 5.2.3 (our grids: a small network, in short trainings)",
        variants=(
            Variant(
                "GEM",
                (
                    *(
                        Comparison(folder, r"(GEM), margin 0\.5, head", "baseline", "test error", "higher")
                        for folder in ("cifar10_grid", "cifar100_noisy")
                    ),
                    Comparison(
                        "tiny_subset", rf"(?P<base>{_TINY}), (GEM), margin 0\.5, head", r"\g<base>, baseline",
                        "test error", "higher",
                    ),
                ),
            ),
        ),
        entries=("cifar10_grid", "cifar100_noisy", "tiny_subset"),
    ),
    Claim(
        text="DCL lowers the test error of networks that are fine-tuned on Tiny ImageNet.",
        where="Table 7, section 5.2.3 (ours on a subset, in short trainings)",
        variants=_joined(
            _paper_table("tiny_imagenet", "ResNet-101|DenseNet-169-32|EfficientNet-B1", ("Top-1 error",), "lower"),
            _grids(("tiny_subset",), "test error", "lower", "EfficientNet-Lite0 fine-tuned", "head"),
        ),
        entries=("tiny_imagenet", "tiny_subset"),
    ),
    Claim(
        text="DCL lowers the error of ResNet-50 on ImageNet, from 24.33 to 24.09 %.",
        where="Table 8, section 5.2.3",
        variants=tuple(
            Variant(
                name,
                (
                    Comparison(
                        "imagenet", rf"(ResNet-50 DCL), {kind}", "ResNet-50 (reproduced)", "Top-1 error", "lower"
                    ),
                ),
            )
            for name, kind in _GRID_KINDS.items()
        ),
        entries=("imagenet",),
    ),
    Claim(
        text="DCL lowers the test error of a network that is trained from scratch on Tiny ImageNet, too.",
        where="Table 9, section 6.5 (ours on a subset, in short trainings)",
        variants=_joined(
            _paper_table("from_scratch", "ResNet-101", ("Top-1 TFS",), "lower"),
            _grids(("tiny_subset",), "test error", "lower", "ResNet-50 from scratch", "head"),
        ),
        entries=("from_scratch", "tiny_subset"),
    ),
    Claim(
        text="Congruency is higher between samples that mean the same than between others.",
        where="Figures 7 and 8, section 6.1 (ours: the same class, in short trainings)",
        variants=(
            Variant(
                "samples of one class against samples of two",
                (Comparison("class_pairs_cifar10", "(within a class)", "between classes", "congruency", "higher"),),
            ),
        ),
        entries=("saliency_pairs", "class_pairs"),
    ),
    Claim(
        text="In classification windows of 20 to 70 steps lower the test error.",
        where="Figure 9, section 6.2 (on Tiny ImageNet; `ablation_digits` is a small network on the embedded digits)",
        variants=tuple(
            Variant(
                name,
                (
                    Comparison(
                        "ablation_windows", rf"(DCL-(?:20|50|70)-1), {kind}, head", "baseline", "Top-1 error", "lower"
                    ),
                    Comparison(
                        "ablation_digits", rf"(DCL-(?:20|50)-1), {kind}, head", "baseline", "test error", "lower"
                    ),
                ),
            )
            for name, kind in _GRID_KINDS.items()
        ),
        entries=("ablation",),
    ),
    Claim(
        text="In classification more reference points than one raise the test error.",
        where="Figure 9, section 6.2 (on Tiny ImageNet; `ablation_digits` is a small network on the embedded digits, "
        "five references against one)",
        variants=tuple(
            Variant(
                name,
                (
                    Comparison(
                        "ablation_references", rf"(DCL-50-(?:5|10|15|20)), {kind}, head", f"DCL-50-1, {plain}, head",
                        "Top-1 error", "higher",
                    ),
                    Comparison(
                        "ablation_digits", rf"(DCL-(?P<_window>\w+)-5), {kind}, head",
                        rf"DCL-\g<_window>-1, {plain}, head", "test error", "higher",
                    ),
                ),
            )
            for (name, kind), plain in zip(
                _GRID_KINDS.items(), ("anchor, margin 0.5", "concentrate, margin 0"), strict=True
            )
        ),
        entries=("ablation",),
    ),
    Claim(
        text="In saliency prediction neither the window nor the number of reference points matters much.",
        where="Figure 9, section 6.2 (on SALICON; ours on OSIE, by the window; much: more than 0.002 of sAUC)",
        variants=tuple(
            Variant(
                name,
                (
                    Comparison(
                        "osie_windows", rf"(.+ (?:Adam|RMSP)) (DCL-(?:120|500)-1){ending}", rf"\g<1> DCL-inf-1{ending}",
                        "sAUC", "same", _LITTLE["sAUC"],
                    ),
                ),
            )
            for name, ending in ((CODE, " anchor"), (EQUATIONS, ""))
        ),
        entries=("saliency_windows",),
    ),
    Claim(
        text="DCL raises the congruency of training, above that of plain training and of GEM.",
        where="Figures 10 and 12, section 6.3 (ours: mean over the epochs, with the way from the start, last layer; on "
        "the embedded digits and in short trainings on CIFAR)",
        variants=_joined(
            *(
                _reported(folder, "congruency", "higher", "sample order (?:fixed|independent)")
                for folder in ("saliency_congruency", "order_digits")
            ),
            _reported("congruency_cifar", "congruency", "higher", r"data cifar\d+"),
            _reported("congruency_tiny", "congruency", "higher"),
            _grids(_MEASURED, "congruency", "higher", scopes="head"),
            _grids(_WITH_GEM, "congruency", "higher", scopes="head", against=_GRIDS_GEM),
        ),
        entries=("saliency_congruency", "congruency_curves"),
    ),
    Claim(
        text="The order of the samples, fixed or independent, matters little for the congruency of training.",
        where="Figure 10, section 6.3.1 (saliency; `order_digits`: classifiers of the embedded digits; little: no more "
        "than 0.02)",
        variants=_orders("saliency_congruency", "order_digits"),
        entries=("saliency_congruency",),
    ),
    Claim(
        text="With DCL the weights end nearer to where they began than in plain training and with GEM.",
        where="Figure 12, section 6.3.3 (ours: the last layer, at the end; on the embedded digits and in short "
        "trainings on CIFAR)",
        variants=_joined(
            _reported("congruency_cifar", "magnitude", "lower", r"data cifar\d+"),
            _reported("congruency_tiny", "magnitude", "lower"),
            _grids(_MEASURED, "magnitude", "lower", scopes="head"),
            _grids(_WITH_GEM, "magnitude", "lower", scopes="head", against=_GRIDS_GEM),
        ),
        entries=("congruency_curves",),
    ),
    Claim(
        text="DCL lowers the training error.",
        where="Figure 13, section 6.3.3 (ours: of the last epoch, in short trainings)",
        variants=_joined(
            _reported("error_curves", "training_error", "lower", gem=False),
            _grids(("cifar10_grid", "cifar100_noisy"), "train_error", "lower"),
            _grids(("tiny_subset",), "train_error", "lower", _TINY, "head"),
        ),
        entries=("error_curves", "tiny_subset"),
    ),
    Claim(
        text="DCL lowers the validation loss, below that of plain training and of GEM.",
        where="Figure 14, section 6.4 (ours: of the last epoch, in short trainings; by task, after the last)",
        variants=_joined(
            _reported("validation_loss_tiny", "test_loss", "lower"),
            _reported("validation_loss_salicon", "test_loss", "lower", "[^()]+"),
            _grids(_MEASURED, "test_loss", "lower"),
            _grids(_WITH_GEM, "test_loss", "lower", scopes="head", against=_GRIDS_GEM),
            _grids(("tiny_subset",), "test_loss", "lower", _TINY, "head"),
            _grids(("tiny_subset",), "test_loss", "lower", _TINY, "head", against=_GRIDS_GEM),
            _against_gem(("mnist_r", "mnist_p", *_CIFAR), "validation_loss", "lower"),
        ),
        entries=("validation_loss", "tiny_subset"),
    ),
    Claim(
        text="A training image costs less time with DCL than with GEM.",
        where="Tables 10 and 11, section 6.6",
        variants=_against("GEM", "lower"),
        entries=("cost",),
    ),
    Claim(
        text="DCL adds no more than 1 to 2 milliseconds to a training image.",
        where="Tables 10 and 11, section 6.6 (of the paper's graphics cards, where plain training takes 47, 64 and "
        "6 ms; judged: no more than 2 ms)",
        variants=_against("baseline (ResNet-101 / ResNet-50 / ResNet-50)", "same", 2.0),
        entries=("cost",),
    ),
    Claim(
        text="The window does not change what a training image costs.",
        where="Table 12, section 6.6 (against the shortest window; judged: by no more than 2 %, as 49 ms are in whole "
        "milliseconds)",
        variants=_costs("cost_window", (10, 20, 30, 40, 50), 0.02),
        entries=("cost_window",),
    ),
    Claim(
        text="The number of reference points changes little in what a training image costs.",
        where="Table 12, section 6.6 (against one; little: no more than 10 %, from 49 to 54 ms in the paper)",
        variants=_costs("cost_references", (1, 5, 10, 15, 20), 0.1),
        entries=("cost_references",),
    ),
)  # fmt: skip
"""In the order of the paper."""

import io
import json
import re
import sys
import typing
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from command_line import call
from rich.console import Console
from typer.models import OptionInfo

import congruency
import congruency.studies
from congruency import cli
from congruency.report.tables import to_rich
from congruency.studies import bench, bench_report, demo

ROWS = [
    "GPT, AdamW", "GPT, Cautious", "GPT, DCL", "digits, SGD", "digits, Cautious", "digits, DCL",
    "rotations, SGD", "rotations, GEM",
]  # fmt: skip


def test_version():
    assert call("--version").output == f"congruency {congruency.__version__}\n"


@pytest.mark.parametrize("command", ["demo", "bench"])
def test_help_explains_every_option(command):
    result = call(command, "--help")
    assert result.exit_code == 0
    assert "--out" in result.output
    assert command in call("--help").output


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "made" / "here"
    result = call("demo", "--seeds", 2, "--steps", 10, "--epochs", 2, "--window", 5, "--out", out)
    return result, out


def test_demo_prints_the_table_and_the_findings(small):
    result, _ = small
    assert result.exit_code == 0, result.output
    for row in ROWS:
        assert row in result.output
    assert "comparisons have p < 0.05" in " ".join(result.output.split())
    assert "index.html" in result.output.replace("\n", "")


def test_demo_writes_the_page(small):
    _, out = small
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "results.json"]
    html = (out / "index.html").read_text("utf-8")
    HTMLParser().feed(html)
    assert set(re.findall(r"\w+://[\w./]+", html)) == {"http://www.w3.org/2000/svg"}
    assert html.count('class="chart"') == 11
    for row in ROWS:
        assert row in html
    assert "congruency demo --seeds 2 --steps 10 --epochs 2 --window 5 --first-seed 0 --out" in html


def test_demo_writes_one_number_per_seed(small):
    _, out = small
    results = json.loads((out / "results.json").read_text())
    assert list(results) == ROWS
    for name, row in results.items():
        metric = "validation_loss" if name.startswith("GPT") else "test_error"
        assert set(row) == {"seed", metric, "train_loss", "run_congruency", "changed"}
        assert all(len(values) == 2 for values in row.values())
        assert row["seed"] == [0, 1]


def test_demo_runs_what_its_settings_say_by_default(monkeypatch):
    seen = []
    monkeypatch.setattr(demo, "run", lambda settings, out, console: seen.append((settings, str(out))))
    assert call("demo").exit_code == 0
    assert seen == [(demo.Settings(), "congruency-demo")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0"], "--seeds"),
        (["--epochs", "-3"], "--epochs"),
        (["--window", "1"], "--window"),
        (["--steps", "0"], "--steps"),
        (["--steps", "55"], "steps must be a multiple of 10"),
        (["--first-seed", "-1"], "--first-seed"),
        (["--seeds", "many"], "--seeds"),
        (["--out", "{file}"], "a folder is needed"),
        (["--out", "{file}/below"], "a folder is needed"),
    ],
)
def test_demo_refuses_bad_values_before_any_work(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run", lambda *_: pytest.fail("it began to work"))
    file = tmp_path / "file"
    file.touch()
    result = call("demo", *(word.format(file=file) for word in words))
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_bench_passes_its_options(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(bench, "run", lambda **options: seen.append(options))
    assert call("bench").exit_code == 0
    here = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    words = [
        "--device",
        "cpu",
        "--size",
        "1e4",
        "--size",
        200,
        "--references",
        2,
        "--references",
        3,
        "--only",
        "meter",
        "--network",
        "GPT",
        "--mode",
        "graph",
        "--out",
        tmp_path,
        "--quick",
    ]
    assert call("bench", *words).exit_code == 0
    assert seen == [
        {
            "devices": here,
            "sizes": None,
            "references": [1, 3, 10, 20],
            "only": None,
            "networks": None,
            "modes": None,
            "out": None,
            "quick": False,
        },
        {
            "devices": ["cpu"],
            "sizes": [1e4, 200.0],
            "references": [2, 3],
            "only": ["meter"],
            "networks": ["GPT"],
            "modes": ["graph"],
            "out": tmp_path,
            "quick": True,
        },
    ]


def test_bench_measures(tmp_path):
    """A real measurement, small: the table is shown, the file holds every cell, and ratios can be made of it."""
    result = call("bench", "--device", "cpu", "--size", "1e4", "--references", 1, "--references", 3,
                  "--out", tmp_path, "--quick")  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "bench-cpu.json").read_text())
    assert [(row["parameters"], row["references"]) for row in found["corrections"]] == [(10_000, 1), (10_000, 3)]
    for row in found["corrections"]:
        assert all(row[name] > 0 for name in ("sgd_step", "congruent", "corrected", "memory_limit"))
    assert "One correction of all parameters" in result.output
    assert found["machine"]["torch"] == torch.__version__
    for kind in ("memory", "meter", "updates"):
        assert found[kind], kind
    assert found["training_steps"] == []  # a size was asked for, not networks
    page = (tmp_path / "bench.html").read_text("utf-8")
    assert "Cost against references" in page
    assert "One update of a congruency meter" in page


def test_bench_measures_the_chosen_networks(tmp_path):
    words = ("bench", "--device", "cpu", "--only", "steps", "--quick", "--out", tmp_path)
    result = call(*words, "--network", "mlp", "--mode", "eager")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "bench-cpu.json").read_text())
    assert {row["network"].split()[0] for row in found["training_steps"]} == {"MLP"}
    result = call(*words, "--network", "ResNet-9")
    assert result.exit_code == 2
    assert "the networks are MLP 784-100-100-10" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda-2"])
def test_tables_of_the_stored_benchmark_fit_a_terminal(device):
    """80 columns, and no row that breaks into two."""
    stored = Path(__file__).parents[1] / "benchmarks" / "results" / f"bench-{device}.json"
    result = json.loads(stored.read_text("utf-8"))
    for row in result["training_steps"]:
        row.setdefault("host", [1e-4, 3e-4])
        row.setdefault("launches", [30.0, 34.0])
    made = bench_report.tables(result)
    assert len(made) >= 4
    chart = next(f.chart for f in bench_report.page([result]).figures if f.title.startswith("Cost against size"))
    assert {"2.5e7", "3.5e8"} <= set(re.findall(r"[\d.]+e\d", chart))
    for _, table in made:
        shown = io.StringIO()
        Console(width=80, file=shown).print(to_rich(table))
        lines = shown.getvalue().splitlines()
        rule = next(i for i, line in enumerate(lines) if line.startswith("───"))
        for row, line in zip(table.rows, lines[rule + 1 :], strict=False):
            assert line.split() == " ".join(row).split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "abacus"], "PyTorch cannot use 'abacus' here"),
        (["--device", "cuda:99"], "PyTorch cannot use 'cuda:99' here"),
        (["--size", "0"], "--size"),
        (["--size", "inf"], "--size"),
        (["--references", "0"], "--references"),
        (["--only", "everything"], "'everything' is not one of 'corrections', 'memory', 'meter', 'updates', 'steps'"),
    ],
)
def test_bench_refuses_bad_values_before_any_work(words, message, monkeypatch):
    monkeypatch.setattr(bench, "run", lambda **_: pytest.fail("it began to work"))
    result = call("bench", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_interrupted_demo_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "summarise", interrupted)
    result = call("demo", "--steps", 10, "--out", tmp_path / "out")
    assert result.exit_code == 130
    assert "nothing was written" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["typer", "rich", "sklearn", "scipy"])
def test_a_core_installation_says_what_to_install(missing, monkeypatch, capsys):
    for module in [name for name in sys.modules if name.startswith("congruency.studies.")]:
        monkeypatch.delitem(sys.modules, module)
    for name in ("demo", "bench", "evidence"):
        monkeypatch.delattr(congruency.studies, name, raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "argv", ["congruency", "demo"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert "pip install '.[experiments]' in a checkout of congruency" in error
    assert error.count("\n") == 1


def test_other_missing_modules_are_not_disguised(monkeypatch):
    def broken():
        raise ModuleNotFoundError("No module named 'congruency.nothing'", name="congruency.nothing")

    monkeypatch.setattr(cli, "build", broken)
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def commands(app):
    """The functions of all commands and subcommands."""
    for command in app.registered_commands:
        yield command.callback
    for group in app.registered_groups:
        yield from commands(group.typer_instance)


def test_an_option_whose_metavar_is_its_name_says_its_name():
    """Some releases of typer take such a metavar for the name, and the option would be --DEVICE."""
    found = 0
    for command in commands(cli.build()):
        for name, hint in typing.get_type_hints(command, include_extras=True).items():
            for info in getattr(hint, "__metadata__", ()):
                if isinstance(info, OptionInfo) and (info.metavar or "").lower() == name:
                    # typer keeps the first name in `default` until it builds the command
                    assert f"--{name}" in (info.default, *info.param_decls), command.__name__
                    found += 1
    assert found

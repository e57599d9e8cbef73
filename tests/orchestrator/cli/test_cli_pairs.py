import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import MagicMock

import pytest
import typer

from orchestrator.cli._app import app
from orchestrator.cli._options import EXCLUDED, NEEDED
from orchestrator.cli._table import SHOWN
from orchestrator.nightly import Verdict
from orchestrator.packages.accept import Decision
from orchestrator.storage.results import StudyResult
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import SweepSpec, load_sweep
from orchestrator.tracking import BestConfig
from trainables.store.artifacts import ArtifactStore

SWEEP = """
name: night
tasks: [{dataset: digits, model: convnet, protocol: digits}]
recipes: [ce]
storage: calsweep-storage
"""


class Reached(BaseException):
    """The work that a command hands over would begin here."""


STOP = object()  # Nothing after this call is looked at: the work itself would begin.


@dataclass(frozen=True)
class Scene:
    """How a command is called.

    Attributes:
        words: Its arguments.
        answers: What functions answer that it calls; each call is an effect.
        values: Of options, where those of ``VALUES`` do not suit.
        instead: Arguments in place of ``words`` where some options are given.
        also: Another option and its value, without which an option has nothing to change.
    """

    words: Sequence[str] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, Sequence[str]] = field(default_factory=dict)
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)


def result(sweep: str, task: str, recipe: str, ece: float) -> StudyResult:
    test = ({"ece": ece, "acc": 0.9 + ece, "nll": 1 - ece},)
    dataset, model, _ = task.split("/")
    names = {"dataset": dataset, "model": model, "run_ids": (f"run-{recipe}",)}
    more = {"metrics": {}, "seconds": (1.0,)}
    return StudyResult(sweep, task, recipe, "finished", test=test, **names, **more)  # type: ignore[arg-type]


TASKS = ("cifar10/resnet50/p", "cifar100/resnet50/p", "tiny-imagenet/resnet50/p")
RESULTS = [
    result("night", task, recipe, ece + place / 100)
    for place, task in enumerate(TASKS)
    for recipe, ece in (("ls", 0.03), ("ce", 0.02), ("mbls", 0.01))
]
BEST = BestConfig("t", "ce", "night", "run", 1, 0.25, {"objective": "nll"}, {"ce": {}}, {})
CELLS = [
    (SimpleNamespace(task=task, recipe=recipe), SimpleNamespace(seed=seed))
    for task, recipe, seed in itertools.product("tu", ("ce", "ls"), (0, 1))
]
DECISION = Decision(True, "ece", -0.1, 0.01, 0.025, 1, ("a",), (0,))
VERDICT = Verdict("2026-01-02", "ok")
NIGHTS = [
    SimpleNamespace(name=f"2026-01-0{n}", verdict=None, facts={}, folder=Path("night"))
    for n in range(1, 9)
]


def tracked(uri: str, sweep: str) -> list[StudyResult]:
    """Return a sweep's results; those of ``other`` are on other data."""
    found = [replace(each, sweep=sweep, fingerprint="usual") for each in RESULTS]
    if sweep == "other":
        return [replace(each, recipe="fl", fingerprint="other") for each in found[:1]]
    return found


def cells(task: str | None, recipe: str | None, seed: int | None) -> list[Any]:
    wanted = {"task": task, "recipe": recipe, "seed": seed}
    return [
        (study, trial)
        for study, trial in CELLS
        if all(v in (None, {**vars(study), **vars(trial)}[k]) for k, v in wanted.items())
    ]


def first(given: object, *_: object) -> object:
    return given


@dataclass
class Verified:
    """What ``verify`` found."""

    accepted: bool = True
    checks: tuple[object, ...] = ()
    problems: tuple[str, ...] = ()


ASKED = {
    "orchestrator.cli._options.journal_results": {},
    "orchestrator.tracking.study_results": tracked,
}
LOGITS = {"orchestrator.cli._logits.use_plugins": None, "trainables.data.read_logits": MagicMock()}
CLI, NIGHTLY = "orchestrator.cli", "orchestrator.cli.nightly"
RUN = {
    "orchestrator.running.run.run_sweep": STOP,
    "orchestrator.cli._run.show_plan": None,
    "orchestrator.cli._run._start_early": None,
}
NIGHT = Path("calsweep-storage/sweeps/night")
HELD = {f"{CLI}._watch._existing": MagicMock(**{"control.return_value": "pause", "path": NIGHT})}
BENCHMARK = MagicMock(**{"book.return_value.nights.return_value": NIGHTS, "path": "file"})
BENCHMARK.name, BENCHMARK.folder = "bench", Path("bench")
SET = {f"{NIGHTLY}.load": BENCHMARK}
JUDGED = {
    f"{NIGHTLY}.judged_nights": [(SimpleNamespace(night=n.name), MagicMock()) for n in NIGHTS]
}
JUDGED |= {f"{NIGHTLY}.all_cells": ["a", "b"], f"{NIGHTLY}.matching_cells": ["a"]}

SCENES = {
    "demo": Scene(answers=RUN),
    "run": Scene(
        ["night.yaml"],
        {**RUN, "orchestrator.running.reproduce.reproduce": STOP},
        instead={"--resume": [], "--reproduce": []},
    ),
    "submit": Scene(
        ["night.yaml"],
        {
            "orchestrator.cluster.jobs.submit": ("client", "job-1"),
            "orchestrator.cluster.jobs.follow": 0,
            "orchestrator.cluster.slurm.submit_to_slurm": 1,
            "orchestrator.cluster.slurm.show_scripts": "a script",
        },
    ),
    "status": Scene(["night"]),
    "cancel": Scene(["night"], HELD),
    "pause": Scene(["night"], HELD),
    "resume": Scene(["night"], HELD),
    "plan": Scene(
        ["night.yaml"], {f"{CLI}._plan.show_plan": None, f"{CLI}._plan._print_plan": None}
    ),
    "best": Scene(
        ["night"],
        {
            "orchestrator.tracking.best_config": [BEST, BEST],
            "orchestrator.tracking.known_studies": [("t", "ce")],
            "orchestrator.tracking.champion.promote": MagicMock(),
        },
    ),
    "table": Scene(
        ["night"],
        {**ASKED, f"{CLI}._table._with_ties": first, f"{CLI}._table._with_gains": first},
        {"--metrics": "nll,seconds", "--recipes": "ce,mbls", "--show": "floor"},
    ),
    "package predictions": Scene(
        ["night"],
        {
            "orchestrator.packages.stored.StoredSweep.open": SimpleNamespace(
                cells=cells, tested=MagicMock()
            )
        },
        {"--task": "t", "--seed": "1"},
    ),
    "compare": Scene(
        ["night"],
        {
            **ASKED,
            "orchestrator.statistics.compare": "a comparison",
            "orchestrator.statistics.deployment": [],
            "orchestrator.statistics.board": "a board",
            "orchestrator.statistics.spreads": [],
            f"{CLI}._compare._csv_rows": [],
            f"{CLI}._compare._show": None,
            f"{CLI}._ranks.save_diagram": None,
            "orchestrator.statistics.judge_claim": "a verdict",
            f"{CLI}._claims._csv_rows": [],
            f"{CLI}._claims._show": None,
        },
        {"--task": TASKS[0], "--out": "a.png"},
    ),
    "report": Scene(
        ["night"],
        {
            **ASKED,
            "orchestrator.view.from_folder": "a source",
            f"{CLI}._outcome.write_page": 1,
            "orchestrator.view.plots.write_plots": [],
        },
    ),
    "ui": Scene(
        answers={
            "orchestrator.view.server.Book": MagicMock(),
            "orchestrator.view.server.serve": None,
        }
    ),
    "package publish": Scene(
        ["night", "--out", "usual"],
        {
            "orchestrator.packages.publish.publish": [],
            "orchestrator.packages.hub.publish_repository": "hf:a/b",
        },
        {"--to": "hf:a/b"},
        instead={"--to": ["night"], "--out": ["night"]},
    ),
    "package board": Scene(
        ["old.zip", "hf:ada/new", "--out", "board.html"],
        {"orchestrator.packages.board.render_board": "a page"},
    ),
    "package accept": Scene(
        ["old.zip", "new.zip"],
        {
            "orchestrator.packages.accept.accept": Decision(
                True, "ece", -0.1, 0.01, 0.025, 1, ("a",), (0,)
            )
        },
        {"--draws": "100"},
    ),
    "logs": Scene(
        ["night"],
        {
            **HELD,
            "orchestrator.storage.ledger.read_ledger": SimpleNamespace(trials={}),
            "orchestrator.cluster.slurm_queue.outputs": {},
            f"{CLI}._watch._jobs": {},
        },
    ),
    "package verify": Scene(
        ["package.zip"],
        {
            "secrets.randbelow": 7,
            "orchestrator.packages.verify.verify": Verified(),
            "orchestrator.packages.markdown.to_markdown": "",
        },
    ),
    "search blackbox": Scene(
        ["night"], {"orchestrator.packages.blackbox.export_blackbox": {"studies": []}}
    ),
    "search replay": Scene(
        ["calsweep-storage"],
        {
            "orchestrator.replay.replay": "an outcome",
            f"{CLI}._replay._show": None,
            "orchestrator.replay.output.write_replay": [],
        },
    ),
    "features extract": Scene(
        ["convnet", "digits"],
        {
            f"{CLI}._features.use_plugins": None,
            "trainables.stages.extract.extract_features": {"train": 3},
        },
    ),
    "logits calibrate": Scene(
        ["a.npz"],
        {
            **LOGITS,
            "orchestrator.logits.calibrate.plan_task": "a task",
            "orchestrator.logits.calibrate.calibrate_table": MagicMock(),
            "orchestrator.logits.calibrate.save_table": None,
        },
        {"--with": "ets"},
    ),
    "logits apply": Scene(
        ["calibrator", "a.npz"],
        {
            **LOGITS,
            "trainables.calibrators.load_calibrator": MagicMock(),
            "orchestrator.logits.scoring.score": (0.01, 0.5, 1.25),
            "orchestrator.logits.files.save_log_probs": None,
        },
        {"--out": "o.npz"},
    ),
    "logits arena": Scene(
        ["night.yaml"],
        {
            "orchestrator.running.arena.run_arena": RESULTS,
            "orchestrator.statistics.arena": "an arena",
            f"{CLI}._arena.show_arena": None,
            f"{CLI}._ranks.save_diagram": None,
        },
    ),
    "list": Scene(
        ["methods"], {f"{CLI}._list.use_plugins": None}, instead={"--storage": ["sweeps"]}
    ),
    "doctor": Scene(
        answers={
            f"{CLI}._doctor._findings": [],
            f"{CLI}._doctor._datasets": [],
            f"{CLI}._doctor.check_plugin": 0,
        }
    ),
    "storage gc": Scene(answers={"orchestrator.storage.garbage.collect_garbage": []}),
    "nightly run": Scene(
        ["file"],
        {
            **SET,
            "orchestrator.nightly.run_night": SimpleNamespace(
                messages=[], fresh=True, night=NIGHTS[0], verdict=VERDICT
            ),
        },
        {"--night": "2026-01-02"},
    ),
    "nightly status": Scene(
        ["file"], {**SET, f"{NIGHTLY}._cells_of": [], f"{NIGHTLY}._print_trends": None}
    ),
    "nightly history": Scene(
        ["file"],
        {
            **SET,
            **JUDGED,
            "orchestrator.nightly.to_csv": "",
            "orchestrator.nightly.plotted": MagicMock(),
        },
    ),
    "nightly accept": Scene(
        ["ce on t: ece"],
        {
            **SET,
            **JUDGED,
            "orchestrator.nightly.Acceptance": None,
            f"{NIGHTLY}._first_night": "2026-01-02",
        },
        {"--from": "2026-01-03"},
    ),
    "nightly gate": Scene(
        ["main"],
        {
            **SET,
            "orchestrator.nightly.gate": SimpleNamespace(markdown="m", title="t", verdict=VERDICT),
        },
    ),
}
VALUES = {
    "--address": "auto",
    "--baseline": "mbls",
    "--cell": "ce on t: ece",
    "--claim": "mbls-beats-ls",
    "--control": "mbls",
    "--diagram": "d.svg",
    "--fit-rows": "0:5",
    "--judge": "brier",
    "--kind": "probs",
    "--layout": "macal/table1",
    "--metric": "nll",
    "--metrics": "nll",
    "--objectives": "ls",
    "--recipe": "ls",
    "--recipes": "ce",
    "--report": "report.md",
    "--resume": "night",
    "--rows": "recipe,model",
    "--since": "2026-05-01",
    "--storage": "kept",
    "--tag": "a=b",
    "--tasks": TASKS[0],
    "--time": "1:00:00",
    "--tracking-uri": "folder:/tracked",
    "--until": "2026-05-31",
}
# They go away, or are of one option.


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command with two options or more, by name."""
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))
    if path and not hasattr(command, "commands") and len(list(options(command))) > 1:
        yield " ".join(path), command


def options(command: Any) -> Iterator[Any]:
    return (each for each in command.params if each.param_type_name == "option")


COMMANDS = dict(leaves(typer.main.get_command(app)))


def value(option: Any, scene: Scene) -> list[str]:
    """Return the words by which an option is given, with a value that is not its default."""
    name = option.opts[0]
    if option.is_flag:
        return [name]
    kind = option.type_descriptor.annotation
    choices = [each for each in get_args(kind) if isinstance(each, str) and each != option.default]
    numbers = {kind, *get_args(kind)}
    usual = "3" if int in numbers else "0.5" if float in numbers else [*choices, "x"][0]
    return [name, scene.values.get(name) or VALUES.get(name) or usual]


def plain(thing: Any) -> Any:
    """Return what an argument holds, alike in every call."""
    if isinstance(thing, SweepSpec):
        return thing.model_dump(mode="json")
    if isinstance(thing, Storage | SweepFolder):
        return str(thing.folder if isinstance(thing, Storage) else thing.path)
    if isinstance(thing, ArtifactStore):
        return str(thing.root)
    if isinstance(thing, Mapping):
        return {name: plain(each) for name, each in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain(each) for each in thing]
    return re.sub(r" (at|id=)[ ']?0?x?\w+'?|calsweep-\w{8}\b", "", repr(thing))


@dataclass
class Stage:
    """Calls commands and tells their effects."""

    calsweep: Callable[..., Any]
    patch: pytest.MonkeyPatch
    folder: Path
    calls: list[Any] = field(default_factory=list)
    mocks: list[MagicMock] = field(default_factory=list)

    def set(self, answers: Mapping[str, Any]) -> None:
        self.mocks = [each for each in answers.values() if isinstance(each, MagicMock)]
        for place, answer in answers.items():
            module, _, name = place.rpartition(".")
            try:
                owner = importlib.import_module(module)
            except ModuleNotFoundError:
                module, _, inner = module.rpartition(".")
                owner = getattr(importlib.import_module(module), inner)
            self.patch.setattr(owner, name, self._recorder(place, answer))

    def _recorder(self, place: str, answer: Any) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((place, plain(arguments), plain(named)))
            if answer is STOP:
                raise Reached
            return answer(*arguments) if answer in (tracked, first) else answer

        return call

    def effects(self, scene: Scene, name: str, given: Sequence[Sequence[str]]) -> Any:
        """Return exit code, output, calls and files of a command with some options."""
        self.calls.clear()
        before = {*self.folder.rglob("*")}
        chosen = {option for option, *_ in given}
        instead = [words for option, words in scene.instead.items() if {*option.split()} <= chosen]
        words, answer = [*instead, scene.words][0], (None, "", "")
        with suppress(Reached):
            answer = self.calsweep(*name.split(), *words, *itertools.chain(*given))
        new = [path for path in self.folder.rglob("*") if path not in before]
        told = {str(path): path.read_bytes() for path in sorted(new) if path.is_file()}
        for path in sorted(new, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        calls = [*self.calls, *(plain(mock.mock_calls) for mock in self.mocks)]
        for mock in self.mocks:
            mock.reset_mock()
        return *answer, calls, told


@pytest.fixture
def stage(
    calsweep: Callable[..., Any], empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Stage:
    (empty_folder / "night.yaml").write_text(SWEEP)
    spec = load_sweep(empty_folder / "night.yaml")
    for place, seeds in (("calsweep-storage", (7,)), ("kept", (7, 8))):
        folder = Storage(place).sweep("night")
        folder.path.mkdir(parents=True)
        folder.write_spec(spec.model_copy(update={"storage": place, "seeds": seeds}))
        folder.journal.write_text("")
    return Stage(calsweep, monkeypatch, empty_folder)


def needs(name: str, option: str) -> list[str]:
    return [other for other, these in NEEDED.get(name, {}).items() if option in these.split()]


def is_refusal(effects: Any, *names: str) -> bool:
    code, _, err, *_ = effects
    lines = err.count("\n") == 1 and "Traceback" not in err
    return code == 2 and lines and all(name in err for name in names)


def wrong_pairs(name: str, stage: Stage) -> Iterator[str]:
    scene, command = SCENES[name], COMMANDS[name]
    words = {each.opts[0]: value(each, scene) for each in options(command)}
    required = {each.opts[0] for each in options(command) if each.required}

    def effects(*chosen: str) -> Any:
        more = dict.fromkeys(need for option in chosen for need in needs(name, option))
        every = dict.fromkeys((*chosen, *more))
        rest = [[option, "needed"] for option in required - every.keys()]
        also = [scene.also[option] for option in every if option in scene.also]
        rest += [both for both in also if both[0] not in every]
        return stage.effects(scene, name, [*rest, *(words[option] for option in every)])

    single = {option: effects(option) for option in words}
    for one, two in itertools.combinations(words, 2):
        if two in needs(name, one) or one in needs(name, two):
            continue
        both = effects(one, two)
        pairs = itertools.product([one, *needs(name, one)], [two, *needs(name, two)])
        if any(is_refusal(both, *pair) for pair in pairs):
            continue
        if both[0] == 2:
            yield f"{one} {two}: refused, but not as a pair: {both[2]}"
        for ignored, other in ((one, two), (two, one)):
            if both == single[other]:
                yield f"{ignored} has no effect with {other}"


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_any_two_options_have_their_effect_or_are_refused(name: str, stage: Stage) -> None:
    stage.set(SCENES[name].answers)
    assert "\n".join(wrong_pairs(name, stage)) == ""


@pytest.mark.full
def test_any_two_words_of_show_have_their_effect_or_are_refused(stage: Stage) -> None:
    stage.set(SCENES["table"].answers)
    also = [["--layout", "macal/table1"], ["--metrics", "ece,seconds"]]

    @cache
    def effects(mixed: bool, *words: str) -> Any:
        scene = Scene(["night", *(["other"] * mixed)])
        return stage.effects(scene, "table", [*also, ["--show", ",".join(words)]])

    for pair in itertools.combinations(SHOWN, 2):
        both = effects("mixed" in pair, *pair)
        if not is_refusal(both, *pair):
            assert both[0] == 0, pair
            assert both not in [effects("mixed" in pair, word) for word in pair], pair


def test_rules_are_of_options_that_there_are() -> None:
    for name, rules in EXCLUDED.items():
        known = {each.opts[0] for each in options(COMMANDS[name])}
        named = {o for each in rules for o in f"{each.option} {each.others} {each.unless}".split()}
        assert named <= known
    for name, needed in NEEDED.items():
        known = {each.opts[0] for each in options(COMMANDS[name])}
        assert {o for one, others in needed.items() for o in (one, *others.split())} <= known


LACKING = [
    (name, needed, option)
    for name, pairs in NEEDED.items()
    for needed, others in pairs.items()
    for option in others.split()
]


@pytest.mark.parametrize(("name", "needed", "option"), LACKING)
def test_an_option_that_needs_another_option_is_refused_alone(name, needed, option, stage):
    (given,) = [each for each in options(COMMANDS[name]) if each.opts[0] == option]
    scene = SCENES[name]
    assert is_refusal(stage.effects(scene, name, [value(given, scene)]), option, needed)

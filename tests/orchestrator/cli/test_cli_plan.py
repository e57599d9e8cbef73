import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestrator.storage.provenance import keep_plugins, pin_plugins
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.spec import load_sweep

DEMO = Path(__file__).resolve().parents[3] / "examples" / "demo.yaml"
SMALL = """
name: small
tasks:
  - {dataset: digits, model: convnet, protocol: digits}
recipes: [mbls, mbls+ts]
search: {trials: 3}
"""


def table_rows(out):
    lines = out.splitlines()
    end = next(i for i, line in enumerate(lines) if " studies, " in line)
    return [line.split() for line in lines[1:end]], lines[end:]


def counts(below):
    rows = [line.split() for line in below if line.split()[1:2] and "/" in line.split()[0]]
    return {row[1]: (int(row[2]), int(row[3])) for row in rows}


@pytest.fixture
def small(empty_folder):
    path = empty_folder / "small.yaml"
    path.write_text(SMALL)
    return path


def test_the_demo_has_24_rows_and_far_fewer_trainings_than_trials(calsweep, empty_folder):
    code, out, err = calsweep("plan", DEMO)
    rows, below = table_rows(out)
    assert (code, err) == (0, "")
    assert len({row[1] for row in rows}) == len(rows) == 24
    # ce has nothing to search, the five other methods three trials each; ts searches nothing.
    assert below[0] == (
        "24 studies, 46 trials: at most 16 trainings, 18 refinements on stored features, "
        "12 calibrations of stored logits"
    )
    assert "46 trainings" in below[1]
    assert counts(below) == {"train": (16, 0), "refine": (18, 0), "calibrate": (12, 0)}
    assert list(empty_folder.iterdir()) == []


def test_each_row_of_a_plan_has_its_searched_parameters_and_its_upstream_recipe(calsweep):
    rows, _ = table_rows(calsweep("plan", DEMO).out)
    by_recipe = {row[1]: row for row in rows}
    task = "digits-noisy/convnet/digits-32"
    assert by_recipe["mbls"] == [task, "mbls", "train", "3", "mbls.margin,", "mbls.weight"]
    assert by_recipe["ce+macal+ts"][2:4] == ["calibrate", "1"]
    assert by_recipe["ce+macal+ts"][-1] == "ce+macal"


def test_a_narrow_terminal_cuts_nothing_off_the_studies(calsweep, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal.
    monkeypatch.setenv("COLUMNS", "70")
    studies = calsweep("plan", DEMO).out.partition(" studies, ")[0]
    assert "…" not in studies
    assert "searches" in studies


def test_dry_run_is_the_plan(calsweep):
    expected = calsweep("plan", DEMO).out
    assert calsweep("run", "--dry-run", DEMO).out == expected


def test_a_plan_puts_studies_that_are_not_rows_into_brackets(calsweep, small):
    small.write_text(SMALL.replace("[mbls, mbls+ts]", "[mbls+macal+ts]"))
    rows, below = table_rows(calsweep("plan", small).out)
    assert [row[1] for row in rows] == ["(ce)", "(mbls)", "(mbls+macal)", "mbls+macal+ts"]
    assert below[0].startswith("4 studies, 8 trials: at most 4 trainings, 3 refinements")


@pytest.fixture
def own(empty_folder):
    """Return a function that writes a sweep on data of one's own, spoilt first."""
    arrays = {
        "x_train": np.zeros((40, 8, 8, 1), np.uint8),
        "y_train": np.arange(40) % 2,
        "x_test": np.zeros((10, 8, 8, 1), np.uint8),
        "y_test": np.arange(10) % 2,
    }

    def write(spoil=lambda arrays: None, dataset="npz:own.npz", split="{}", suites="[]"):
        spoil(arrays)
        np.savez(empty_folder / "own.npz", **arrays)
        for name, shade in (("a", 0), ("b", 255)):
            for number in range(20):
                path = empty_folder / "images" / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (8, 8), shade).save(path)
        fields = f"dataset: '{dataset}', split: {split}, suites: {suites}"
        path = empty_folder / "own.yaml"
        path.write_text(SMALL.replace("dataset: digits", fields))
        return path

    return write


DATA_FAULTS = {
    "absent": ({"dataset": "npz:absent.npz"}, "absent.npz does not exist"),
    "no labels": ({"spoil": lambda a: a.pop("y_train")}, "key 'y_train' is missing"),
    "other sizes": (
        {"spoil": lambda a: a.update(x_test=a["x_test"][:, 1:])},
        "images of one shape",
    ),
    "class left out": (
        {"spoil": lambda a: a.update(y_train=a["y_train"] * 2)},
        "y_train has 2 but no",
    ),
    "too few images": ({"split": "{train_limit: 39}"}, "split train_limit=39 is more than"),
    "absent folder": ({"dataset": "folder:absent"}, "absent does not exist"),
    "small digits": ({"dataset": "digits", "split": "{test: 1797}"}, "split test=1797 leaves"),
    "absent suite": ({"suites": "['ood-npz:absent.npz']"}, "absent.npz does not exist"),
}


@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_a_plan_refuses_the_data_that_a_run_refuses(calsweep, own, empty_folder, fault):
    wrong, expected = DATA_FAULTS[fault]
    path = own(**wrong)
    before = sorted(empty_folder.rglob("*"))
    planned = calsweep("plan", path)
    assert (planned.code, planned.out) == (2, "")
    assert "tasks[0] (" in planned.err
    assert expected in planned.err
    assert sorted(empty_folder.rglob("*")) == before
    assert calsweep("run", "--quiet", path) == planned


def test_a_plan_lists_the_downloads_of_a_run(calsweep, own, empty_folder):
    path = own(dataset="cifar10-lt:50", suites="[ood-svhn, cifar10-c]")
    code, out, _ = calsweep("plan", path)
    assert code == 0
    for line in (
        "dataset 'cifar10-lt:50' is not downloaded yet: ",
        "dataset 'svhn' is not downloaded yet: ",
        "suite 'cifar10-c' is not downloaded yet: ",
    ):
        assert out.count(line) == 1
    assert not (empty_folder / "data").exists()


@pytest.mark.parametrize("dataset", ["tiny-imagenet", "cub200"])
def test_a_plan_lists_data_sets_that_users_must_download_themselves(calsweep, own, dataset):
    path = own(dataset=dataset)
    code, out, _ = calsweep("plan", path)
    assert code == 0
    assert f"dataset {dataset!r} is missing: " in out
    assert "and put it into" in out
    failed = calsweep("run", "--quiet", path)
    assert (failed.code, failed.out) == (2, "")


def test_a_plan_tells_of_test_rows_among_training_rows(calsweep, own):
    rows = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 1), dtype=np.uint8)
    path = own(lambda arrays: arrays.update(x_train=rows[:40], x_test=rows[35:45]))
    told = ": 5 of 10 test rows are copies of "
    assert told in calsweep("plan", path).out
    known = json.loads(calsweep("plan", "--json", path).out)["copies"]
    assert [(found["test"], found["test_rows"]) for found in known.values()] == [(5, 10)]
    own(lambda arrays: arrays.update(x_train=rows[:40], x_test=rows[:10]))
    failed = calsweep("plan", path)
    assert (failed.code, failed.out) == (2, "")
    assert "all 10 test rows are copies of training or validation rows" in failed.err


def test_a_plan_looks_into_the_storage_that_is_named(calsweep, empty_folder, monkeypatch):
    (empty_folder / "s.yaml").write_text(
        "{name: s, tasks: [{dataset: digits, model: convnet, protocol: digits}], recipes: [ce]}"
    )
    seen = []
    monkeypatch.setattr("orchestrator.cli._plan.show_plan", lambda spec, _: seen.append(spec))
    assert calsweep("plan", "s.yaml", "--storage", "other").code == 0
    assert calsweep("plan", "s.yaml").code == 0
    assert [Path(spec.storage).name for spec in seen] == ["other", "calsweep-storage"]


def test_plan_needs_no_source_of_stored_data(calsweep, own, empty_folder):
    from orchestrator.running.data import prepare_data
    from orchestrator.sweep.spec import load_sweep

    path = own(dataset="folder:images", split="{validation: 2}")
    prepare_data(load_sweep(path))
    assert calsweep("plan", path).code == 0
    shutil.rmtree(empty_folder / "images")
    assert "images does not exist" in calsweep("plan", path).err


def test_a_plan_for_a_cluster_counts_the_trials_that_run_at_once(calsweep, small):
    alone = calsweep("plan", small).out.splitlines()
    there = calsweep("plan", small, "--nodes", "2", "--cpus-per-node", "1").out.splitlines()
    expected = "on 2 nodes, at most at once: train 2, calibrate 1; no estimate of the time"
    assert [line for line in there if line not in alone] == [expected]
    told = json.loads(calsweep("plan", small, "--json", "--nodes", "2").out)["cluster"]
    assert told == {"nodes": 2, "at_once": {"train": 4, "calibrate": 1}, "hours": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", "0"), "'--nodes': Input should be greater than or equal to 1"),
        (("--nodes", "9999999999999999999", "--gpus-per-node", "-1"), "'--gpus-per-node': Input"),
        (("--gpus-per-node", "2"), "--gpus-per-node has no effect without --nodes: add --nodes or"),
        (
            ("--nodes", "4", "--gpus-per-node", "3"),
            "per-node 3: a trial needs 4 GPUs on one node (resources.train); use larger nodes",
        ),
        (
            ("--nodes", "4", "--gpus-per-node", "4", "--cpus-per-node", "7"),
            "per-node 7: a trial needs 8 CPUs on one node (resources.train); use larger nodes",
        ),
    ],
)
def test_a_plan_refuses_trials_that_fit_on_no_node(calsweep, small, options, message):
    small.write_text(f"{SMALL}resources: {{train: {{cpu: 8, gpu: 4}}}}\n")
    code, out, err = calsweep("plan", small, *options)
    assert (code, out, message in err, err.count("\n")) == (2, "", True, 1)


def test_a_plan_of_one_machine_has_no_cluster(calsweep, small):
    small.write_text(f"{SMALL}executor: local\n")
    told = "calsweep: executor: local computes on one machine; remove the key to use a cluster\n"
    assert calsweep("plan", small, "--nodes", "2") == (2, "", told)


def test_a_changed_plugin_is_named_before_run_refuses_it(calsweep, small):
    plugin = small.with_name("mine.py")
    shutil.copy(DEMO.parent / "plugin/calsweep_example/gce.py", plugin)
    small.write_text(SMALL.replace("mbls, mbls+ts", "gce") + f"plugins: [{plugin}]\n")
    spec = pin_plugins(load_sweep(small))
    keep_plugins(spec)
    SweepFolder.of(spec).write_spec(spec)
    told = "calsweep run refuses this file: "
    assert told not in calsweep("plan", small).out
    plugin.write_text(f"{plugin.read_text()}\nCHANGED = True\n")
    (line,) = [line for line in calsweep("plan", small).out.splitlines() if told in line]
    refused = calsweep("run", small)
    assert (refused.code, refused.err) == (2, line.replace(told, "calsweep: ") + "\n")
    assert line.endswith(
        "another `plugins`; give this one another name, or run the sweep file with --fresh"
    )
    assert json.loads(calsweep("plan", small, "--json").out)["refused"] == line.removeprefix(told)


def test_one_trial_searches_nothing(calsweep, small):
    small.write_text(SMALL.replace("trials: 3", "trials: 1"))
    rows, _ = table_rows(calsweep("plan", small).out)
    assert {row[1]: row[4:8] for row in rows}["mbls"] == ["nothing:", "one", "trial"]


def test_a_storage_that_is_a_file_is_named_before_run_refuses_it(calsweep, small):
    code, out, _ = calsweep("plan", small, "--storage", small)
    path = small / "sweeps" / "small"
    told = f"storage: {path} cannot be written: {small} is not a folder"
    assert (code, f"calsweep run refuses this file: {told}" in " ".join(out.split())) == (0, True)

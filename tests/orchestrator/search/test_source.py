from typing import Any

import pytest

from orchestrator.loop import Pause
from orchestrator.search.state import SearchSource, SweepState
from orchestrator.storage.events import Event, TrialFinished
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import parse_sweep
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.jobs import Cost, Fault, FaultKind, Job, Report, StageWork, Status

TASK = "digits/convnet/digits"
FIGURES = {"val_ece": 0.25, "val_acc": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreparedData]:
    folder = tmp_path_factory.mktemp("data")
    return {TASK: prepare("digits", folder, SplitSpec(), folder / "prepared")}


def source_of(
    data: dict[str, PreparedData], recipes: str, resources: str = "{}", search: str = ""
) -> tuple[SearchSource, list[Event]]:
    spec = parse_sweep(
        "name: s\ntasks: [{dataset: digits, model: convnet, protocol: digits}]\n"
        f"recipes: [{recipes}]\nresources: {resources}\nsearch: {{trials: 4, objective: ece, "
        f"accuracy_tolerance: null, keep_default: false{search}}}\n",
        "s",
    )
    events: list[Event] = []
    return SearchSource(SweepState(make_plan(spec), "id", data, events.append)), events


def next_of(source: SearchSource) -> tuple[Job, StageWork]:
    job = source.next()
    assert isinstance(job, Job)
    assert isinstance(job.work, StageWork)
    return job, job.work


def finished(work: StageWork) -> Report:
    return Report(status=Status.FINISHED, metrics=FIGURES, artifact=work.request.key())


@pytest.mark.parametrize("graph", [True, False])
def test_job_holds_all_that_a_trial_needs(data, graph):
    flags = f"deterministic: {not graph}, graph: {graph}".lower()
    resources = f"{{{flags}, train: {{cpu: 3}}, refine: {{cpu: 2, gpu: 0.5}}}}"
    source, _ = source_of(data, "mbls+macal", resources)
    assert source.sizes == [(3, 0.0), (2, 0.5), (1, 0.0)]
    job, work = next_of(source)
    assert (job.group, job.number, job.cpus, job.gpus) == (f"{TASK}|mbls", 0, 3, 0.0)
    assert (job.deterministic, job.graph, job.epochs) == (not graph, graph, 0)
    assert (work.score, work.request.together) == ("val_ece", [])
    assert work.request.parts == {"mbls": {"margin": 6.0, "weight": 0.1, "variant": "released"}}
    assert work.request.data == str(data[TASK].directory)
    while job.group == f"{TASK}|mbls":
        source.ended(job, finished(work))
        job, work = next_of(source)
    assert (job.cpus, job.gpus, len(work.request.together)) == (2, 0.5, 4)


def test_search_waits_and_ends(data):
    source, events = source_of(data, "mbls")
    given = [next_of(source) for _ in range(4)]
    assert source.next() is Pause.WAIT
    for job, work in given:
        source.ended(job, finished(work))
    assert source.next() is Pause.DONE
    ends = [event for event in events if isinstance(event, TrialFinished)]
    assert [(end.key, end.status) for end in ends] == [(job.key, "finished") for job, _ in given]


def test_schedulers_may_cut_search_trials_short_only(data):
    source, _ = source_of(data, "mbls, mbls+macal, mbls+ts", search=", scheduler: asha")
    epochs: dict[str, set[int]] = {}
    while isinstance(job := source.next(), Job):
        epochs.setdefault(job.group, set()).add(job.epochs)
        assert isinstance(job.work, StageWork)
        source.ended(job, finished(job.work))
    assert epochs == {f"{TASK}|mbls": {30}, f"{TASK}|mbls+macal": {40}, f"{TASK}|mbls+ts": {1}}


COST = Cost(1.23456, epoch_seconds=0.5, peak_memory=9.0)
TOLD = {"seconds": 1.235, "epoch_seconds": 0.5, "peak_memory": 9.0}
ASSERTED = "AcceleratorError: CUDA error: device-side assert triggered"


def failing(kind: FaultKind, reason: str = "x") -> dict[str, Any]:
    return {"status": Status.FAILED, "fault": Fault(kind, reason, "File a.py"), "host": "h"}


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"cost": COST}, TOLD),
        ({"cost": Cost(0.0, reused=True)}, {"reused": True, "seconds": 0.0}),
        ({"cost": Cost(0.0, 0.0, 9.0)}, {"seconds": 0.0}),
        ({"status": Status.PRUNED, "cost": COST}, {"status": "pruned", "artifact": "", **TOLD}),
        (
            failing(FaultKind.CONFIGURATION),
            {"status": "failed", "reason": "x", "artifact": "", "fault": ""},
        ),
        (
            failing(FaultKind.MACHINE),
            {"status": "failed", "reason": "x", "artifact": "", "fault": "machine", "metrics": {}},
        ),
        (  # What fails on every device is the configuration's.
            failing(FaultKind.MACHINE, ASSERTED),
            {"status": "failed", "reason": ASSERTED, "artifact": "", "fault": "", "metrics": {}},
        ),
    ],
)
def test_report_becomes_the_end_of_a_trial(data, report, expected):
    source, events = source_of(data, "mbls")
    job, work = next_of(source)
    told = {"status": Status.FINISHED, "artifact": work.request.key(), **report}
    source.ended(job, Report(metrics=FIGURES, **told))
    (end,) = [event for event in events if isinstance(event, TrialFinished)]
    where = {"host": "h", "traceback": "File a.py"} if expected.get("reason") else {}
    plain = {"status": "finished", "artifact": work.request.key(), "seconds": 0.0}
    assert end == TrialFinished(key=job.key, **{"metrics": FIGURES, **plain, **where, **expected})

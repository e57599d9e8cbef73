import json
import os
from pathlib import Path

import pytest
from small_stages import Workshop, request

from tests.own_process import run_script
from tests.trainables.worker.attempts import ATTEMPTS, Prize, outcomes
from tests.trainables.worker.bench_here import Place, finish
from trainables.data import TestDataSealedError, require_unsealed, sealed_within
from trainables.data._guard import INHERITED
from trainables.jobs import Status
from trainables.stages import evaluate_on_test
from trainables.worker import Worker

SCRIPT = Path(__file__).with_name("attempts.py").read_text()
SEALED, REACHED = dict.fromkeys(ATTEMPTS, "sealed"), dict.fromkeys(ATTEMPTS, "reached")


@pytest.fixture(scope="module")
def prize(tmp_path_factory: pytest.TempPathFactory) -> Prize:
    folder = tmp_path_factory.mktemp("prize")
    workshop = Workshop(folder)
    trained = workshop.compute(request(workshop.prepared))
    _, evaluation = evaluate_on_test(workshop.store, trained.ref, workshop.prepared)
    (folder / "evaluation").write_text(f"train {trained.key} {evaluation.key}")
    return Prize(folder)


def in_a_process(mode: str, folder: Path) -> dict[str, str]:
    return dict(json.loads(run_script(SCRIPT, mode, str(folder))))


def test_sealed_process_reaches_no_test_data(prize):
    first = {"before the first step": "sealed", "status": "finished"}
    assert in_a_process("sealed", prize.folder) == first | SEALED


def test_attempts_to_read_test_data_succeed_in_an_unsealed_worker(prize):
    assert in_a_process("open", prize.folder) == REACHED


@pytest.mark.full
def test_seal_for_a_while_holds_while_it_lasts(prize):
    place = Place(prize.folder, prize.data)
    for _ in range(2):
        with sealed_within():
            worker = Worker(place.bench(sealed=True))
            worker.open(place.job(seed=6))
            assert finish(worker)[-1].status == Status.FINISHED
            assert outcomes(prize) == SEALED
            with sealed_within():
                pass
            assert outcomes(prize) == SEALED  # Who was sealed before stays so.
        assert outcomes(prize) == REACHED


@pytest.mark.parametrize("before", [None, "/nowhere"])
def test_children_inherit_a_seal_only_while_it_lasts(monkeypatch, before):
    monkeypatch.delenv(INHERITED, raising=False)
    if before is not None:
        monkeypatch.setenv(INHERITED, before)
    with pytest.raises(ZeroDivisionError), sealed_within():  # noqa: PT012 - what it leaves counts
        assert INHERITED in os.environ
        with pytest.raises(TestDataSealedError):
            require_unsealed("this")
        _ = 1 / 0
    assert os.environ.get(INHERITED) == before
    require_unsealed("this")

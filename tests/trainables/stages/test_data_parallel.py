import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine import CPU, facts, images, protocol

from trainables.common.devices import one_thread
from trainables.methods import build_method, method_names
from trainables.stages.data_parallel import Team
from trainables.stages.engine import Trainer

SIZE = 2
# Sums in another order, through two epochs of three steps; weights are of the order of one.
ROUNDING = {"kde-xe": 2e-2}  # A change of its initial weights by 2e-7 grows to 7e-3 as well.
USUAL = 1e-5


def train(name: str, team: Team | None = None) -> dict[str, Any]:
    """Train two epochs; no batch but the last of an epoch, of one row, divides evenly."""
    method = build_method({name: {}})
    made = Trainer(
        "convnet", method, images(43), facts(), protocol(batch_size=14, clip_norm=1.0), 0, CPU,
        team=team,
    )  # fmt: skip
    figures = [made.train_epoch() for _ in range(2)]
    return {"figures": figures, "weights": made.network.state_dict()}


def train_every(rank: int, folder: Path) -> None:
    """Train with every method, as one of two processes."""
    with one_thread():
        for name in method_names():
            place = folder / name
            place.mkdir(exist_ok=True)
            team = Team(rank, SIZE, CPU, str(place))
            try:
                torch.save(train(name, team), folder / f"{name}-{rank}.pt")
            finally:
                team.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together")
    spawned = multiprocessing.get_context("spawn")
    other = spawned.Process(target=train_every, args=(1, folder), daemon=True)
    other.start()
    train_every(0, folder)
    other.join(240)
    assert other.exitcode == 0
    return folder


@pytest.mark.full
@pytest.mark.parametrize("name", method_names())
def test_two_processes_train_as_one_does(name, trained):
    one, rounding = train(name), ROUNDING.get(name, USUAL)
    both = [torch.load(trained / f"{name}-{rank}.pt", weights_only=True) for rank in range(SIZE)]
    assert both[0]["figures"] == both[1]["figures"]
    for key, weight in one["weights"].items():
        assert torch.equal(both[0]["weights"][key], both[1]["weights"][key]), key
        torch.testing.assert_close(both[0]["weights"][key], weight, rtol=0, atol=rounding)
    for found, expected in zip(both[0]["figures"], one["figures"], strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=rounding)

"""A process that trains a network together with rank 0, see ``data_parallel``."""

import io
import sys
from multiprocessing.connection import Connection

import torch

from trainables.common.files import require_code
from trainables.data import PreparedData
from trainables.plugins import load_plugins
from trainables.stages.base import TaskData
from trainables.stages.data_parallel import Team
from trainables.stages.train import build_trainer

ORDERS = ("train_epoch", "load_state_dict")


def main() -> None:
    """Execute the orders of rank 0 until it ends; report an error to it."""
    connection = Connection(int(sys.argv[1]))
    try:
        rank, size, folder, code, computing, plugins, *given = connection.recv()
        require_code(code)
        load_plugins(plugins)
        request, directory = given
        threads, deterministic, on_gpu = computing
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(device)
        team = Team(rank, size, device, folder)
        data = TaskData(PreparedData.open(directory), device)
        connection.send(None)  # Ready to meet.
        trainer = build_trainer(request, data, team)
        while True:
            content = io.BytesIO(connection.recv_bytes())
            order, arguments = torch.load(content, map_location="cpu", weights_only=True)
            getattr(trainer, ORDERS[ORDERS.index(order)])(*arguments)
    except EOFError:  # Rank 0 has ended.
        return
    except Exception as error:  # noqa: BLE001 - rank 0 reports it
        connection.send(error)


if __name__ == "__main__":
    main()

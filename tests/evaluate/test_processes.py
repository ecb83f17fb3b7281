"""Two processes give what one gives, bit for bit."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp

from crispseg.data.folder import Folder, open_folder
from crispseg.evaluate import Evaluation, Settings, evaluate
from crispseg.train.distributed import join_processes
from tests.evaluate.toy import blur_model

CHOSEN = Settings(tile=32, overlap=8, worst=4)


def facts(evaluation: Evaluation) -> dict[str, object]:
    worst = [[*window.order, int(window.image.sum()), int(window.prediction.sum())] for window in evaluation.worst]
    return {"scores": evaluation.to_dict(), "worst": worst}


def _work(rank: int, port: int, root: str, out: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.manual_seed(0)
    with join_processes("cpu") as processes:
        evaluation = evaluate(blur_model(), open_folder(root), settings=CHOSEN, processes=processes)
        Path(out, f"{rank}.json").write_text(json.dumps(facts(evaluation)))


def test_two_processes_equal_one(folder: Folder, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_work, (port, str(folder.root), str(tmp_path)), nprocs=2)
    torch.manual_seed(0)
    alone = evaluate(blur_model(), open_folder(folder.root), settings=CHOSEN, device="cpu")
    expected = json.loads(json.dumps(facts(alone)))
    assert len(alone.worst) == 3 and np.trace(alone.confusion.counts.numpy()) > 0
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected

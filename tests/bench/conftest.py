import pytest

from crispseg.bench.result import Latency, ModelCell
from crispseg.bench.settings import choose

TINY = "crisp_nano:width=8,depths=[1,1,1,1],heads=[1,1,2,2],state=4,dim=16,attention_heads=2,mlp_dim=16"


@pytest.fixture
def settings():
    return choose("cpu", sizes=(32,), modes=("eager",), repeats=2, warmup=1, threads=1)


def model_cell(model="a", milliseconds=2.0, **fields):
    facts = {"size": 512, "batch": 1, "precision": "fp32", "mode": "eager", "device": "cpu", "check_bound": 1e-4}
    latency = None if milliseconds is None else Latency(milliseconds, 0.1, 5)
    return ModelCell(model=model, latency_ms=latency, **(facts | fields))

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crispseg import config as configs
from crispseg.errors import UserError


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    kind: Literal["a", "b"] = "a"


@dataclasses.dataclass(frozen=True)
class Outer:
    steps: int
    name: str = "x"
    inner: Inner = Inner()
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[int, float] = (1, 2.0)
    path: Path | None = None
    table: dict[str, int] = dataclasses.field(default_factory=dict)
    flag: bool = False


def test_nested_build_and_back():
    values = {"steps": 3, "inner": {"rate": "6e-5", "kind": "b"}, "sizes": [4, 5], "path": "a/b", "table": {"k": 1}}
    made = configs.build(Outer, values)
    assert made.inner == Inner(6e-5, "b")
    assert made.sizes == (4, 5)
    assert made.path == Path("a/b")
    assert configs.build(Outer, configs.to_dict(made)) == made


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 1, "nam": "y"}, "unknown config key 'nam'; did you mean 'name'"),
        ({"steps": 1, "inner": {"rat": 1}}, "unknown config key 'inner.rat'; did you mean 'inner.rate'"),
        ({"steps": 1.5}, "steps must be a whole number, not 1.5"),
        ({"steps": True}, "steps must be a whole number, not True"),
        ({"steps": 1, "inner": {"kind": "c"}}, "inner.kind must be one of a, b, not 'c'"),
        ({"steps": 1, "inner": {"rate": "fast"}}, "inner.rate must be a number, not 'fast'"),
        ({"steps": 1, "inner": 3}, "inner must be a mapping of settings"),
        ({"steps": 1, "sizes": 3}, "sizes must be a list, not 3"),
        ({"steps": 1, "sizes": [1, "x"]}, r"sizes\[1\] must be a whole number"),
        ({"steps": 1, "pair": [1]}, "pair must have 2 values, not 1"),
        ({"steps": 1, "flag": "yes"}, "flag must be true or false"),
        ({}, "config key steps is required"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(UserError, match=message):
        configs.build(Outer, values)


def test_numpys_numbers_become_pythons():
    built = configs.build(Outer, {"steps": np.int64(3), "inner": {"rate": np.float32(0.5)}})
    assert type(built.steps) is int and type(built.inner.rate) is float
    assert repr(configs.to_dict({"a": np.int64(3), "b": (np.float32(0.5),), "c": np.ones(2)})) == (
        "{'a': 3, 'b': [0.5], 'c': [1.0, 1.0]}"
    )
    with pytest.raises(UserError, match="steps must be a whole number"):
        configs.build(Outer, {"steps": np.bool_(True)})


def test_overrides():
    words = ["steps=10", "inner.rate=1e-3", "inner.kind=b", "sizes=[7]", "flag=true"]
    made = configs.build(Outer, configs.parse_overrides(words))
    assert made == Outer(10, inner=Inner(1e-3, "b"), sizes=(7,), flag=True)
    with pytest.raises(UserError, match="expected key=value, got 'steps'"):
        configs.parse_overrides(["steps"])
    with pytest.raises(UserError, match="value of steps is not valid YAML"):
        configs.parse_overrides(["steps=[1"])


def test_yaml_with_a_base(tmp_path):
    (tmp_path / "base.yaml").write_text("steps: 5\ninner: {rate: 0.5, kind: b}\n")
    (tmp_path / "over.yaml").write_text("base: base.yaml\ninner: {rate: 0.25}\n")
    assert configs.build(Outer, configs.read_yaml(tmp_path / "over.yaml")) == Outer(5, inner=Inner(0.25, "b"))
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    for name, message in (("absent", "no config file"), ("list", "must hold"), ("bad", "is not valid YAML")):
        with pytest.raises(UserError, match=message):
            configs.read_yaml(tmp_path / f"{name}.yaml")


nested = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
)
mappings = st.dictionaries(st.sampled_from("abc"), nested, max_size=3)


@given(x=mappings, y=mappings, z=mappings)
def test_merge_laws(x, y, z):
    assert configs.merge(x, {}) == x
    assert configs.merge({}, x) == x
    assert configs.merge(x, x) == x
    for key, value in y.items():
        if not isinstance(value, dict):
            assert configs.merge(x, y)[key] == value

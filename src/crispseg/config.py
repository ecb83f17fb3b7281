"""Configs are frozen dataclasses. This builds them from mappings, YAML files and `dotted.key=value` words.

Kept to dataclasses and PyYAML so that training runs on machines that have little else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from crispseg import reading
from crispseg.errors import UserError, unknown

T = TypeVar("T")
_MOST_PARTS = 20  # of a dotted key


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Make a (possibly nested) dataclass from plain values; an unknown key or a wrong type is a UserError."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in names:
            raise _unknown_key(cls, key, where)
        made[key] = _convert(hints[key], value, f"{where}{key}")
    missing = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in made
    ]
    if missing:
        raise UserError(f"config key {where}{missing[0]} is required and not given")
    return cls(**made)


def _unknown_key(cls: type, key: str, where: str) -> UserError:
    """Names the group that has such a key, before keys that are written alike."""
    for group, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint) and any(field.name == key for field in dataclasses.fields(hint)):
            return UserError(f"unknown config key {where + key!r}; did you mean '{where}{group}.{key}'?")
    return unknown("config key", f"{where}{key}", [f"{where}{field.name}" for field in dataclasses.fields(cls)])


def checked(hint: Any, value: Any, where: str) -> Any:
    """`value` (from JSON, YAML or a checkpoint) as what `hint` says, or a UserError that names the place.

    Takes the hints of dataclasses and also TypedDicts, whose unknown keys are kept: files of later versions have more.
    """
    return _convert(hint, value, where)


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse what a public function was given of another type than its hints say; `given` is its `locals()`.

    Numbers may be numpy's, and text a path. What a class of ours or another library's is hinted for is only kept from
    plain values: what else it may be, the function knows better.
    """
    for name, hint in function.__annotations__.items():
        if hint == "Any" or name in _TOLD_BETTER or name not in given:
            continue
        options = _OPTIONS.split(hint)
        if not any(_is_of(given[name], option) for option in options):
            names = dict.fromkeys(_ARGUMENT_NAMES.get(option, option) for option in options if option != "None")
            raise UserError(f"{name} must be {' or '.join(names)}, not {shown(given[name])}")


def check_positive(values: Mapping[str, float | None]) -> None:
    """Refuse what is 0 or less, or no finite number, by the key it has in a config; None is left open."""
    for key, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{key} must be more than 0{' and finite' if value == math.inf else ''}, not {value}")


def check_between(values: Mapping[str, float], low: float, high: float) -> None:
    """Refuse what does not lie in [low, high], by the key it has in a config."""
    for key, value in values.items():
        if not (low <= value <= high and math.isfinite(value)):
            limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise UserError(f"{key} must be {limits}, not {value}")


def check_range(key: str, ends: tuple[float, float], high: float = math.inf) -> None:
    """Refuse two numbers that are no range within (0, high]."""
    if not (0 < ends[0] <= ends[1] <= high and math.isfinite(ends[1])):
        limits = "positive numbers" if high == math.inf else f"numbers above 0 and up to {high:g}"
        raise UserError(f"{key} must be two {limits}, the smaller first, not {list(ends)}")


def to_dict(config: Any) -> Any:
    """The plain values of a config, ready for YAML or JSON; `build` takes them back. Numpy's numbers and arrays, and
    tensors, become Python's."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(key): to_dict(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_dict(value) for value in config]
    if hasattr(config, "tolist"):
        return config.tolist()
    return str(config) if isinstance(config, Path) else config


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file's mapping; its `base` (`other.yaml` beside it, or a name of `crisp configs`) is read first."""
    return _read_yaml(Path(path), ())


def _read_yaml(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    from crispseg.configs import SUFFIXES, find_config

    if path.resolve() in above:
        raise UserError(f"{path} is its own base: {' -> '.join(p.name for p in (*above, path))}")
    values = reading.read_yaml_file(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `key: value` lines")
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise UserError(f"`base` of {path} must name a file, not {shown(base)}")
    file = path.parent / base if base.endswith(SUFFIXES) else find_config(base)
    return merge(_read_yaml(file, (*above, path.resolve())), values)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on top, mapping by mapping."""
    result = dict(base)
    for key, value in over.items():
        both_nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if both_nested else value
    return result


def nested(key: str, value: Any) -> dict[str, Any]:
    """`optimizer.lr` and a value as {"optimizer": {"lr": value}}."""
    first, *others = key.split(".")
    for part in reversed(others):
        value = {part: value}
    return {first: value}


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """`["train.steps=100", "seed=1"]` as a nested mapping; values are read as YAML."""
    result: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key or key.count(".") >= _MOST_PARTS:
            raise UserError(f"expected key=value, got {shown(word)}")
        value = reading.parse_yaml(text, f"the value of {shown(key)[1:-1]}")
        result = merge(result, nested(key, value))
    return result


def shown(value: Any) -> str:
    """A value in a message: whoever wrote it may have written a lot."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]} ..."


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, value, where)
    if origin is typing.Literal:
        if not any(value == option and type(value) is type(option) for option in args):
            raise UserError(f"{where} must be one of {', '.join(map(str, args))}, not {shown(value)}")
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise UserError(f"{where} must be a mapping of settings, not {shown(value)}")
        return build(hint, value, f"{where}.")
    if typing.is_typeddict(hint):
        return _convert_typed_dict(hint, value, where)
    if origin in (tuple, list):
        return _convert_sequence(origin, args, value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{where} must be a mapping, not {shown(value)}")
        return {
            _convert(args[0], key, f"a key of {where}"): _convert(args[1], item, f"{where}.{key}")
            for key, item in value.items()
        }
    return _convert_scalar(hint, value, where)


def _convert_typed_dict(hint: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a mapping, not {shown(value)}")
    missing = sorted(key for key in hint.__required_keys__ if key not in value)
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}")
    hints = typing.get_type_hints(hint)
    return {key: _convert(hints.get(key, Any), item, f"{where}.{key}") for key, item in value.items()}


def _convert_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    problems = []
    for option in args:
        if option is type(None):
            continue
        try:
            return _convert(option, value, where)
        except UserError as error:
            problems.append(error)
    raise problems[-1]


def _convert_sequence(origin: type, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UserError(f"{where} must be a list, not {shown(value)}")
    items = list(value)
    if origin is tuple and args and args[-1] is not Ellipsis:
        if len(items) != len(args):
            raise UserError(f"{where} must have {len(args)} values, not {len(items)}")
        hints = list(args)
    else:
        hints = [args[0] if args else Any] * len(items)
    return origin(_convert(h, item, f"{where}[{i}]") for i, (h, item) in enumerate(zip(hints, items, strict=True)))


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, numbers.Real | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)  # YAML reads 6e-5 as text
    elif hint is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)  # numpy's, too
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    elif isinstance(value, hint) and hint is not int:
        return value
    quotes = "; in YAML on, off, yes and no need quotes to be text" if hint is str and isinstance(value, bool) else ""
    raise UserError(f"{where} must be {_PLAIN_NAMES.get(hint, hint)}, not {shown(value)}{quotes}")


def _is_of(value: Any, option: str) -> bool:
    """Whether an argument is of one of the types in its hint."""
    if option.startswith(("Sequence[", "Iterable[")):
        inside = _OPTIONS.split(option.partition("[")[2][:-1])
        items = value if isinstance(value, list | tuple) else ()  # others may be gone when they were looked at
        return (
            isinstance(value, Iterable)
            and not isinstance(value, str)
            and all(any(_is_of(item, one) for one in inside) for item in items)
        )
    if option == "bool":
        return not isinstance(value, str | None)
    taken = _TAKEN.get(option)
    if taken is None:
        return not isinstance(value, _PLAIN)
    return isinstance(value, taken) and not isinstance(value, bool)


_OPTIONS = re.compile(r" \| (?![^\[]*\])")
_TOLD_BETTER = ("return", "image", "model", "device")  # torch takes more than names of devices
_TAKEN: dict[str, tuple[type, ...]] = {
    "int": (numbers.Integral,),
    "float": (numbers.Real,),
    "str": (str, os.PathLike),
    "StrPath": (str, os.PathLike),
    "os.PathLike[str]": (os.PathLike,),
    "None": (type(None),),
}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set)
_ARGUMENT_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "StrPath": "a path",
    "os.PathLike[str]": "a path",
    "Sequence[StrPath]": "a list of paths",
    "Sequence[float]": "a list of numbers",
    "Sequence[int | str]": "a list of whole numbers and text",
    "Iterable[Tracker]": "a list of Trackers",
}
_PLAIN_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}

"""Which path an operator takes: its Triton kernel, or its formula in plain torch.

A formula becomes an operator by a decorator, and its kernel is registered with it:

    @operator("layer_norm", dtypes=FLOATS)
    def layer_norm(x, weight, bias, eps): ...  # the formula

    @layer_norm.unless  # what else keeps the kernel from being taken, in a word
    def _(x, weight, bias, eps): ...

    @layer_norm.kernel  # in a module of its own, as Triton may not be installed: `thing_kernels.py` beside `thing.py`
    def _(x, weight, bias, eps): ...

A kernel that does not compile or fit on this GPU is given up, with one warning, and the formula takes its place from
then on. `CRISPSEG_OFF=layer_norm,winograd` and `with off("layer_norm", "winograd"):` switch single kernels and faster
ways on a CPU off, `CRISPSEG_OPS_BACKEND=torch` and `with only("torch"):` all of them. `crisp doctor` lists them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, version

from crispseg.errors import unknown

ENVIRONMENT_VARIABLE = "CRISPSEG_OPS_BACKEND"
OFF_VARIABLE = "CRISPSEG_OFF"

HALF = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, *HALF)
# Bytes of shared memory that a program has: on GPUs of laptops and small servers from Ampere on, on an A100, on Hopper
# and newer. What kernels take was asked of the compiler, for crisp_tiny (tests/ops/ahead_of_time.py).
ANY_GPU, A100, DATA_CENTRE = 99 * 1024, 163 * 1024, 227 * 1024

OLDEST_TRITON = (3, 6)  # programmatic dependent launch; older ones do not even import the kernels

# Where operators are registered, beside NC-SSD: modules of each lane, whose kernels are in `.._kernels`.
_LANES = {
    "maps": ("convolution", "depthwise", "normalize", "resizing"),
    "infer": ("block", "gated_mixer", "matching", "pixel_attention", "token_attention"),
    "train": ("batch_norm", "cross_attention", "cross_entropy", "drop_path", "gated_mixer", "matching", "mlp"),
}

# Faster ways on a CPU; each is asked for where its weights are laid out or its maps come in. All but the last are for
# inference.
CPU_WAYS = {
    "onednn": "products and convolutions whose weights are laid out beforehand",
    "winograd": "3x3 convolutions with a quarter of the multiplications",
    "attention_in_parts": "the head's attention over parts of the image that stay in the cache",
    "training_products": "products of linear layers and of their gradients in float32",
}

Gradients = Literal["any", "none", "needed"]
P = ParamSpec("P")
R = TypeVar("R")


class KernelWarning(UserWarning):
    """A kernel does not run on this machine; its formula does."""


def _has_triton() -> bool:
    """The kernels need torch built for CUDA, or Triton's interpreter, and a Triton that knows what they use."""
    if version.cuda is None and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        release = metadata.version("triton").split(".")
    except metadata.PackageNotFoundError:  # under another name: somebody's own build
        return True
    return (int(release[0]), int(release[1])) >= OLDEST_TRITON


HAS_TRITON = _has_triton()

# Private operators of torch's, the ones that torch.compile ends up with; `cpu/onednn.py` calls them.
_ONEDNN = ("_linear_pointwise", "_reorder_linear_weight", "_convolution_pointwise", "_reorder_convolution_weight")
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in _ONEDNN)

_REGISTERED: dict[str, Operator[..., Any]] = {}
_OFF: set[str] = set()  # by `off`
_interpreting = False  # tensors on a CPU count as being on a GPU, for tests


class Operator(Generic[P, R]):
    """A formula, and the kernel that takes its place where it can."""

    def __init__(
        self,
        formula: Callable[P, R],
        name: str,
        dtypes: tuple[torch.dtype, ...],
        gradients: Gradients,
        room: int,
        of: int | Callable[..., tuple[Tensor, ...]] | None,
    ) -> None:
        self.formula, self.name, self.dtypes, self.gradients, self.room = formula, name, dtypes, gradients, room
        self.failure: str | None = None  # why the kernel was given up
        self._of = of
        self._kernel: Callable[..., R] | None = None
        self._unless: Callable[..., str | None] | None = None
        functools.update_wrapper(self, formula)

    @property
    def words(self) -> str:
        """For which tensors its kernel is."""
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        when = {"any": "", "none": "; in evaluation", "needed": "; in training"}[self.gradients]
        return f"{kinds}{when}"

    def kernel(self, function: Callable[..., R]) -> Callable[..., R]:
        self._kernel = function
        return function

    def unless(self, function: Callable[..., str | None]) -> Callable[..., str | None]:
        self._unless = function
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.why_not(*args, **kwargs) is None:
            if torch.compiler.is_compiling():
                return self.by_kernel(*args, **kwargs)
            try:
                return self.by_kernel(*args, **kwargs)
            except Exception as error:
                self.give_up_unless_wrong(error)
        return self.formula(*args, **kwargs)

    def by_kernel(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Whether it is for these arguments or not."""
        assert self._kernel is not None
        return self._kernel(*args, **kwargs)

    def takes(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the kernel is taken for these arguments; those that nobody asks about may be left out."""
        return self.why_not(*args, **kwargs) is None

    def why_not(self, *args: Any, **kwargs: Any) -> str | None:
        """Why the formula is taken for these arguments; None where the kernel is."""
        of = self._of
        tensors = of(*args, **kwargs) if callable(of) else [x for x in args[:of] if isinstance(x, Tensor)]
        for x in tensors:
            if not x.is_cuda and not _interpreting:
                return "not on a GPU"
            if x.dtype not in self.dtypes:
                return f"{x.dtype}"
        if self.gradients != "any":
            asked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
            if asked != (self.gradients == "needed"):
                return "a gradient is asked for" if asked else "no gradient is asked for"
        why = self._why_not_now() or (why_no_room(tensors[0].device, self.room) if self.room else None)
        return why or (self._unless(*args, **kwargs) if self._unless is not None else None)

    def why_not_on(self, device: torch.device) -> str | None:
        """What keeps the kernel from running on this device, whatever its arguments."""
        if device.type != "cuda" and not _interpreting:
            return "no GPU"
        return self._why_not_now() or why_no_room(device, self.room)

    def _why_not_now(self) -> str | None:
        if self.failure is not None:
            return self.failure
        return _why_off(self.name) or why_no_kernels()

    def give_up_unless_wrong(self, error: BaseException) -> None:
        """From now on the formula, after one warning; raises what is not Triton's."""
        if not _is_tritons(error):
            raise error
        if self.failure is None:
            self.failure = " ".join(str(error).split())[:200] or type(error).__name__
            warnings.warn(
                f"the kernel of {self.name} does not run on this machine, its formula takes over: {self.failure}",
                KernelWarning,
                stacklevel=4,
            )

    def gradients_by_formula(
        self, error: BaseException, formula: Callable[..., Any] | None, gradient: Tensor, inputs: Any
    ) -> Any:
        """The gradients of tensors among the inputs, where the kernel for them failed."""
        self.give_up_unless_wrong(error)
        leaves = [x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x for x in inputs]
        compute: Callable[..., Any] = formula or self.formula
        with torch.enable_grad():
            found = compute(*leaves)
        wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
        result = found if isinstance(found, Tensor) else found[0]
        made = iter(torch.autograd.grad(result, wanted, gradient, allow_unused=True))
        return [next(made) if x.requires_grad else None for x in leaves if isinstance(x, Tensor)]


def operator(
    name: str,
    dtypes: tuple[torch.dtype, ...] = HALF,
    gradients: Gradients = "any",
    room: int = 0,
    of: int | Callable[..., tuple[Tensor, ...]] | None = None,
) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Makes an operator of a formula.

    dtypes: of the tensors, which are `of` the arguments (those that are tensors; of the first so many, if it is a
    number). gradients: "none" is for inference only, "needed" only where one is asked for. room: bytes of shared memory
    that the kernel was cut for.
    """

    def register(formula: Callable[P, R]) -> Operator[P, R]:
        made = Operator(formula, name, dtypes, gradients, room, of)
        _REGISTERED[name] = made
        return made

    return register


def operators() -> dict[str, Operator[..., Any]]:
    """All of them, by name."""
    importlib.import_module("crispseg.ops")
    _import_all()
    return dict(sorted(_REGISTERED.items()))


def load_kernels() -> None:
    """All that need Triton."""
    _import_all("_kernels")


def _import_all(suffix: str = "") -> None:
    for lane, names in _LANES.items():
        for name in names:
            importlib.import_module(f"crispseg.ops.{lane}.{name}{suffix}")


def too_many(count: int, most: int, what: str) -> str | None:
    """A word for `unless`."""
    return f"more than {most} {what}" if count > most else None


@contextlib.contextmanager
def off(*names: str) -> Iterator[None]:
    """Within the block these operators take their formulas."""
    _check(names)
    added = set(names) - _OFF
    _OFF.update(added)
    try:
        yield
    finally:
        _OFF.difference_update(added)


@contextlib.contextmanager
def only(name: str) -> Iterator[None]:
    """Within the block every operator of this room runs on that backend: "torch" is the plain formulas."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT_VARIABLE)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before


@contextlib.contextmanager
def through_the_interpreter() -> Iterator[None]:
    """Within the block kernels are taken on a CPU as they would be on a GPU; Triton's interpreter must be on."""
    global _interpreting
    _interpreting = True
    try:
        yield
    finally:
        _interpreting = False


@functools.cache
def switched_off() -> frozenset[str]:
    """Operators that the environment variable names; it is read once, as every call asks."""
    given = frozenset(name.strip() for name in os.environ.get(OFF_VARIABLE, "").split(",") if name.strip())
    _check(given)
    return given


def _check(names: Any) -> None:
    for name in names:
        if name not in CPU_WAYS and name not in operators():
            raise unknown("operator", name, [*CPU_WAYS, *operators()])


def _why_off(name: str) -> str | None:
    return "switched off" if name in _OFF or name in switched_off() else None


def _why_forced() -> str | None:
    backend = os.environ.get(ENVIRONMENT_VARIABLE)
    return None if backend in (None, "", "triton") else f"{ENVIRONMENT_VARIABLE}={backend}"


def why_not_on_a_cpu(way: str) -> str | None:
    """What keeps one of `CPU_WAYS` from being taken, whatever its tensors: the machine, or somebody's wish."""
    if not _HAS_ONEDNN:
        return "this build of torch has no oneDNN"
    return _why_off(way) or _why_off("onednn") or _why_forced()


def why_no_kernels() -> str | None:
    """What keeps all kernels from running: not in an exported program, which must run where Triton is not installed."""
    if not HAS_TRITON:
        return "no Triton for CUDA is installed"
    return _why_forced() or ("an exported program must run without Triton" if exporting() else None)


def kernels_wanted() -> bool:
    """Whether operators may use their kernels."""
    return why_no_kernels() is None


def exporting() -> bool:
    """Whether torch.export is at work. While torch.compile traces, torch 2.11 says so of itself as well."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program can have; where Triton's interpreter runs, as many as it likes."""
    if device.type != "cuda":
        return 1 << 30
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


@functools.cache
def why_no_room(device: torch.device, room: int) -> str | None:
    """A word for `unless`, where what a kernel takes depends on its arguments; `room` says what any takes."""
    has = shared_memory(device)
    return None if has >= room else f"{has // 1024} KB of shared memory, where the kernel was cut for {room // 1024}"


# What Triton and the driver say in a RuntimeError of a kernel that cannot be made or loaded here. Triton also builds a
# small module in C on every new machine, which takes a compiler and Python's headers.
_CANNOT_BE_MADE = ("PassManager::run failed", "no kernel image", "kernel image is invalid", "Failed to find C compiler")


def _is_tritons(error: BaseException) -> bool:
    """Whether a kernel does not compile or does not fit here. What it did wrong while it ran is not hidden."""
    if isinstance(error, subprocess.CalledProcessError):  # its C compiler's
        return True
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _CANNOT_BE_MADE)
    return any(kind.__module__ == "triton.errors" for kind in type(error).__mro__)

"""One round: a run in trouble, again and again; then in peace; then its files are compared with an untroubled run's."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import time
import traceback
from pathlib import Path

from campaigns.kill import disk
from campaigns.kill.cases import Case, Content
from campaigns.kill.troubles import MARK, NONE, Trouble, choose, disturb, marked, meet
from crispseg.errors import UserError

DONE, REFUSED, FAULT, INTERRUPTED = 0, 3, 4, 5
_WORDS = {DONE: "done", REFUSED: "refused", FAULT: "fault", INTERRUPTED: "interrupted", -9: "killed", -15: "ended"}
_LONGEST = 300.0  # seconds, of one run


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: int  # of the process: one of the above, or minus the signal that ended it
    said: str
    calls: int
    writes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Whole:
    """What untroubled runs give, of the inputs and of the changed ones."""

    content: Content
    changed: Content
    seconds: float
    calls: int
    writes: int


@dataclasses.dataclass
class Round:
    case: str
    seconds: float = 0.0
    troubles: list[str] = dataclasses.field(default_factory=list)
    kills: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)


def run_whole(case: Case, folder: Path) -> Whole:
    """Undisturbed, with the inputs as they are made and as they are changed."""
    contents = []
    outcome = Outcome(FAULT, "", 0, 0, 0.0)
    for name in ("whole", "changed"):
        place = folder / name
        case.make(place)
        if name == "changed":
            case.change(place)
        outcome = run(case, place, NONE)
        if outcome.status != DONE:
            raise RuntimeError(f"{case.name} fails by itself: {outcome.said}")
        contents.append(case.content(place))
    return Whole(contents[0], contents[1], outcome.seconds, outcome.calls, outcome.writes)


def play(case: Case, whole: Whole, rng: random.Random, folder: Path) -> Round:
    case.make(folder)
    begun = time.monotonic()
    played = Round(case.name)
    expected = whole.content
    for _ in range(rng.randint(1, 4)):
        if case.is_finished(folder):
            break
        trouble = choose(rng, whole.seconds, whole.calls, whole.writes, case.name == "ray")
        if rng.random() < 0.12:
            outcomes = run_two(case, folder, trouble if rng.random() < 0.5 else NONE)
            played.troubles.append("two at once")
        else:
            outcomes = [run(case, folder, trouble)]
            played.troubles.append(str(trouble))
        played.troubles[-1] += f" ({', '.join(_WORDS.get(o.status, str(o.status)) for o in outcomes)})"
        played.kills += sum(outcome.status < 0 for outcome in outcomes)
        played.faults += [f"{played.troubles[-1]}: {o.said}" for o in outcomes if o.status == FAULT]
    existing = "refuse"
    if not case.is_finished(folder):
        fate = rng.random()
        if fate < 0.15:
            played.troubles.append("inputs removed, put back")
            _without_inputs(case, folder, played)
        elif fate < 0.35:
            played.troubles.append("inputs changed")
            case.change(folder)
            expected, existing = _after_change(case, folder, whole, played)
    _end_in_peace(case, folder, expected, existing, played)
    played.seconds = round(time.monotonic() - begun, 2)
    return played


def _without_inputs(case: Case, folder: Path, played: Round) -> None:
    away = folder.with_name(f"{folder.name}-inputs")
    (folder / "in").rename(away)
    outcome = run(case, folder, NONE)
    away.rename(folder / "in")
    if outcome.status != REFUSED:
        played.faults.append(f"without inputs it ended with {outcome.status}: {outcome.said}")


def _after_change(case: Case, folder: Path, whole: Whole, played: Round) -> tuple[Content, str]:
    """What to expect: the changed inputs' result, or a refusal and, with the old inputs again, the old result."""
    if not case.refuses_change or not case.has_begun(folder):
        return whole.changed, "replace"
    outcome = run(case, folder, NONE)
    if outcome.status != REFUSED:
        played.faults.append(f"changed inputs were taken: {outcome.status} {outcome.said}")
    shutil.rmtree(folder / "in")
    case.make(folder)
    return whole.content, "refuse"


def _end_in_peace(case: Case, folder: Path, expected: Content, existing: str, played: Round) -> None:
    outcome = run(case, folder, NONE, existing)
    if outcome.status != DONE and not case.is_finished(folder):
        played.faults.append(f"it does not go on: {outcome.status} {outcome.said}")
        return
    found = case.content(folder)
    for name in sorted(set(expected) | set(found)):
        if expected.get(name) != found.get(name):
            played.faults.append(f"{name} differs")
    left = [str(path.relative_to(folder)) for path in (folder / "out").rglob("*.part")]
    if left and outcome.status == DONE:
        played.faults.append(f"left behind: {', '.join(left)}")


def run(case: Case, folder: Path, trouble: Trouble, existing: str = "refuse") -> Outcome:
    outcome = wait(start(case, folder, trouble, existing), folder, trouble)
    _end_what_was_started()
    return outcome


def run_two(case: Case, folder: Path, trouble: Trouble) -> list[Outcome]:
    """At once, on one output; one of them may be refused, or in trouble."""
    troubles = {"one": trouble, "two": NONE}
    children = {name: start(case, folder, each, "refuse", name) for name, each in troubles.items()}
    outcomes = [wait(children[name], folder, each, name) for name, each in troubles.items()]
    _end_what_was_started()
    return outcomes


def _end_what_was_started() -> None:
    """Workers that a killed run leaves behind would hold or write its files."""
    for process in marked():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def start(case: Case, folder: Path, trouble: Trouble, existing: str, name: str = "one") -> int:
    """Forked, so that nothing is imported again; the parent has started no threads."""
    child = os.fork()
    if child:
        return child
    status, said = FAULT, ""
    try:
        os.setpgid(0, 0)
        os.environ[MARK] = str(os.getppid())
        _silence()
        counter = meet(trouble, folder)
        try:
            case.run(folder, existing)
            status = DONE
        except UserError as error:
            status, said = REFUSED, str(error)
        except KeyboardInterrupt:
            status = INTERRUPTED
        except BaseException:
            said = traceback.format_exc()
        descriptor = os.open(_note(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(descriptor, f"{counter.calls} {disk.writes()}\n{said}".encode()[:200_000])
    finally:
        os._exit(status)


def wait(child: int, folder: Path, trouble: Trouble, name: str = "one") -> Outcome:
    begun = time.monotonic()
    _note(folder, name).unlink(missing_ok=True)
    try:
        disturb_until_it_ends(child, trouble, begun)
        status = _wait(child, begun)
    except KeyboardInterrupt:  # the children are in groups of their own and do not hear of it
        os.kill(child, signal.SIGKILL)
        raise
    note = _note(folder, name)
    counted, _, said = (note.read_text(errors="replace") if note.exists() else "").partition("\n")
    calls, writes = map(int, counted.split() or (0, 0))
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    if time.monotonic() - begun > _LONGEST:
        return Outcome(FAULT, f"still running after {_LONGEST:.0f} s", 0, 0, _LONGEST)
    return Outcome(code, said, calls, writes, time.monotonic() - begun)


def disturb_until_it_ends(child: int, trouble: Trouble, begun: float) -> None:
    if trouble.kind in ("kill", "term", "int", "ray worker", "ray head"):
        while time.monotonic() - begun < trouble.after:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
            time.sleep(0.002)
        disturb(child, trouble, begun)


def _wait(child: int, begun: float) -> int:
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() - begun > _LONGEST:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(0.005)


def _note(folder: Path, name: str) -> Path:
    return folder.with_name(f"{folder.name}-{name}.txt")


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

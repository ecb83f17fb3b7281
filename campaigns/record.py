"""What every campaign's record says about where and on what it ran."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys


def about() -> dict[str, str]:
    return {
        "command": shlex.join(["python", "-m", _module(), *sys.argv[1:]]),
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return (spec.name if spec else "?").removesuffix(".__main__")


def _commit() -> str:
    """The commit, with a plus when files that are not in it were changed."""
    try:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")

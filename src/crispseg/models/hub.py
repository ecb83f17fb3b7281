"""Model folders on the Hugging Face hub: `hf:org/name`, or `hf:org/name@revision`.

A folder that was fetched once is found in huggingface_hub's cache, also without a network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from crispseg.errors import UserError
from crispseg.reading import reason

PREFIX = "hf:"
FILES = ("config.json", "model.safetensors", "README.md", "*.jpg", "*.png")  # of a model folder; no code is fetched
_UNREACHED = "the hub cannot be reached from here"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub(word: str) -> bool:
    return word.startswith(PREFIX)


def fetch(word: str) -> Path:
    """The local folder of a model on the hub."""
    hub = _hub()
    name, _, revision = word.removeprefix(PREFIX).partition("@")
    _check_name(name)
    wanted: dict[str, Any] = {"repo_id": name, "revision": revision or None, "allow_patterns": list(FILES)}
    try:
        return Path(hub.snapshot_download(**wanted))
    except Exception as error:  # requests', httpx' and the hub's own
        why = f"{_UNREACHED}, and the model is not in the local cache" if _is_unreached(error) else _why(error)
        raise UserError(f"cannot fetch {word}: {why}") from error


def push(folder: Path, name: str, private: bool = False, message: str = "") -> str:
    """Upload a model folder; returns its address."""
    hub = _hub()
    _check_name(name)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a model folder: it has no config.json")
    api = hub.HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            folder_path=str(folder),
            repo_id=name,
            allow_patterns=list(FILES),
            commit_message=message or f"crispseg model {folder.name}",
        )
    except Exception as error:
        why = f"{_UNREACHED}; try again where it can" if _is_unreached(error) else _why(error)
        raise UserError(f"cannot push to {PREFIX}{name}: {why}") from error
    return str(address)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError("models on the Hugging Face hub need huggingface_hub: pip install 'crispseg[hub]'") from error
    return huggingface_hub


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"a model on the hub is named org/name, not {name!r}")


def _is_unreached(error: Exception) -> bool:
    kind = type(error).__name__
    return kind in ("OfflineModeIsEnabled", "LocalEntryNotFoundError") or "Connect" in kind or "Timeout" in kind


def _why(error: Exception) -> str:
    """What happened, in one sentence with a way out."""
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "GatedRepoError"):
        return "there is no such model, or you may not see it (`hf auth login` signs you in)"
    if kind == "RevisionNotFoundError":
        return "it has no such revision"
    if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
        return "you may not (`hf auth login` signs you in)"
    return reason(error)

"""Where a model runs."""

from __future__ import annotations

import torch

from crispseg.errors import UserError


def find_device(name: str | torch.device | None) -> torch.device:
    """The named device, checked; without a name, an accelerator if there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # torch goes on with all that it might have been
        raise UserError(f"device {str(name)!r} cannot be used here ({reason}); try cpu") from error
    return device

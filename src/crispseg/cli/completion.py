"""Print a script that completes `crisp` and its words in your shell.

crisp completion bash > ~/.local/share/bash-completion/completions/crisp
crisp completion zsh > ~/.zfunc/_crisp            (with ~/.zfunc in fpath)
"""

from __future__ import annotations

import argparse

from crispseg.errors import UserError

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.main import whole_parser
    from crispseg.cli.printer import Printer

    try:
        import shtab
    except ImportError:
        raise UserError("shell completion needs shtab: pip install 'crispseg[completion]'") from None
    script = shtab.complete(whole_parser(), args.shell)
    Printer.of(args).result({"shell": args.shell, "script": script}, script)
    return 0

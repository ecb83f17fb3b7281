"""List the configs and tables that come with crispseg, or print one.

  crisp configs                            their names, and what each is
  crisp configs default                    every key of a training run with its meaning and default
  crisp configs potsdam > my.yaml          a start for a config of your own: crisp train my.yaml
  crisp configs dco                        a table of experiments, for crisp ablate

The last part of a name is enough: unetformer_r18_potsdam for peers/unetformer_r18_potsdam.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crispseg.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the config or table to print; none: list all")


def run(args: argparse.Namespace) -> None:
    from crispseg.cli.printer import Printer
    from crispseg.configs import names, summary

    out = Printer.of(args)
    if args.name is not None:
        path = _find(args.name)
        text = path.read_text(encoding="utf-8")
        out.result({"name": args.name, "path": path, "text": text}, text.rstrip("\n"))
        return
    values = {kind: {name: summary(path) for name, path in names(kind).items()} for kind in ("config", "table")}
    out.result(
        values,
        "Configs: crisp train NAME\n",
        _listed(values["config"]),
        "\nTables of experiments: crisp ablate NAME --data CONFIG\n",
        _listed(values["table"]),
    )


def _find(name: str) -> Path:
    from crispseg.configs import find_config, find_table

    try:
        return find_table(name)
    except UserError:
        return find_config(name)


def _listed(summaries: dict[str, str]) -> str:
    width = max(map(len, summaries))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in summaries.items())

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
    from crispseg.configs import names

    if args.name is not None:
        print(_find(args.name).read_text(encoding="utf-8"), end="")
        return
    print("Configs: crisp train NAME\n")
    _print_list(names("config"))
    print("\nTables of experiments: crisp ablate NAME --data CONFIG\n")
    _print_list(names("table"))


def _find(name: str) -> Path:
    from crispseg.configs import find_config, find_table

    try:
        return find_table(name)
    except UserError:
        return find_config(name)


def _print_list(known: dict[str, Path]) -> None:
    from crispseg.configs import summary

    width = max(map(len, known))
    print("\n".join(f"  {name:<{width}}  {summary(path)}" for name, path in known.items()))

"""The `crisp` command: one file per verb, each with `add_arguments(parser)` and `run(args) -> int | None`."""

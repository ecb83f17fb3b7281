"""Training: `train(config)` and `resume(run)`; `ablate` runs a table of them. The CLI verbs only parse and call."""

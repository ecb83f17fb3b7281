"""Training: `train(config)` and `resume(run)`. The CLI verbs only parse and call."""

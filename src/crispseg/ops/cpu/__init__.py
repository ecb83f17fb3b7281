"""Faster ways on a CPU: oneDNN's products, Winograd's convolutions, attention that stays in the cache."""

"""Runs are killed, starved and disturbed in every way we know, then taken up again: the bytes must be the same.

    python -m campaigns.kill --seed 0 --rounds 100

`cases` says what is run, `troubles` what is done to it, `rounds` plays one against the other. A round follows from
seed and number, but for the moments that depend on the machine's speed.
"""

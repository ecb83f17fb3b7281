"""Training. `crispseg.train("my_folder", model="crisp_nano")` trains a model; `help(crispseg.api.train)` says more.

`loop` has the loop itself, which takes a `TrainConfig`; the command only parses and calls.
"""

from crispseg.rooms import make_callable

make_callable(__name__)

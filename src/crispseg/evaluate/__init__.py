"""Scores of a trained model on a data set, two models compared, and the report folder.

    evaluation = crispseg.evaluate("my_model", "my_data", out="report")

is the short way; its parameters: `help(crispseg.api.evaluate)`. In steps:

    folder = crispseg.data.open_folder("my_data")
    evaluation = evaluate(crispseg.load("my_model"), folder)
    write_report(evaluation, "report")

Images are cut, blended and augmented by the predict room, so what is scored is the map that `crisp predict` would
write; counting is the metrics room's. docs/how-to/evaluation.md says what each figure means.
"""

from crispseg.evaluate.compare import Comparison, compare, write_comparison
from crispseg.evaluate.conditions import Conditions, Settings
from crispseg.evaluate.report import write_report
from crispseg.evaluate.result import Evaluation
from crispseg.evaluate.run import evaluate
from crispseg.rooms import make_callable

__all__ = [
    "Comparison",
    "Conditions",
    "Evaluation",
    "Settings",
    "compare",
    "evaluate",
    "write_comparison",
    "write_report",
]

make_callable(__name__)

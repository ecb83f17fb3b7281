"""The paper's figures from a trained model: spectra, gates, prototypes, errors; numbers, plots and a page.

    folder = crispseg.data.open_folder("my_data")
    analysis = analyze(crispseg.load("my_model"), folder, "val")
    write_analysis(analysis, "analysis")

Images are shown to the model whole (the middle of very large ones), because maps are looked at, not scores made: those
are `crispseg.evaluate`'s. docs/how-to/analysis.md says how to read each figure.
"""

from crispseg.analysis.gates import gates_off, learned_gates
from crispseg.analysis.mixing import at_its_mean
from crispseg.analysis.report import write_analysis
from crispseg.analysis.result import Analysis, Settings
from crispseg.analysis.run import analyze

__all__ = ["Analysis", "Settings", "analyze", "at_its_mean", "gates_off", "learned_gates", "write_analysis"]

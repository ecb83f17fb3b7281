"""Models as files for other programs, each checked against its model before it is put in place.

    crispseg.export(model, "model.onnx")                      # for onnxruntime, OpenVINO, TensorRT, QGIS
    crispseg.export("crisp_nano_aerial", "model.pt2", size=(512, 512))

The room is called like its function, so it can be called itself; `crispseg.export.run.export` says what it takes.
"""

from crispseg.rooms import make_callable

make_callable(__name__, "crispseg.export.run")

"""Many scenes, one after the other: a scene that fails does not stop the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from crispseg import memory
from crispseg.errors import UserError, unknown
from crispseg.geo.landing import Landing, RemoteLanding, find_landing
from crispseg.geo.maps import Legend, style_paths
from crispseg.geo.scenes import Found, find_scenes, scene_files
from crispseg.geo.stac.read import need_pystac
from crispseg.geo.store import is_remote
from crispseg.models.base import SegmentationModel
from crispseg.outputs import EXISTING, refuse_inputs, there
from crispseg.predict.engines import find_engine
from crispseg.predict.evaluate import check_card
from crispseg.predict.scene import Request, Result, Watcher, is_waiting, predict_scene

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Report:
    """What was made and what failed, each failure with its sentence."""

    results: tuple[Result, ...]
    skipped: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]


def predict_scenes(
    scenes: Sequence[str],
    output: str,
    model: SegmentationModel,
    request: Request,
    *,
    engine: str = "local",
    existing: str = "refuse",
    watcher: Watcher | None = None,
    scratch: str | None = None,
    asset: str = "",
) -> Report:
    """Make maps of files and folders of files. One file may be given the output's name; several need a folder.

    `existing` says what to do when an output is there already: refuse, skip or replace. An output in an object store
    (s3://, gs://, az://) is made in the folder `scratch` and uploaded. Scenes may be STAC files, of whose items `asset`
    is read; beside each of their maps there is an item, too.
    """
    if existing not in EXISTING:
        raise unknown("way to treat existing files", existing, EXISTING)
    check_card(model)
    landing, made_as = find_landing(output, scratch)
    request = _with_polygons_here(request, landing)
    found = find_scenes(scenes, asset)
    if any(scene.item for scene in found):
        request = dataclasses.replace(request, stac=True)
    if request.stac:
        need_pystac()
    targets = choose_targets(found, made_as, request)
    landing.check_writable()
    legend = Legend.of(model, weights_version(model))
    results, skipped, failures = [], [], []
    if request.settings.exact and engine != "local":
        raise UserError(f"a scene is run as one image in this process only, not with engine {engine!r}")
    beside_the_maps = next(iter(targets.values())).parent
    with contextlib.closing(find_engine("exact" if request.settings.exact else engine, beside_the_maps)) as runner:
        for scene, target in targets.items():
            try:
                styles = style_paths(target).values()  # earlier versions made none
                if is_waiting(target) or landing.check_existing(request.outputs(target).values(), existing, styles):
                    watching = watcher or Watcher()
                    words = (model, legend, request, runner, watching, existing, landing)
                    made = predict_scene(scene.path, target, *words, item=scene.item)
                    results.append(made)
                else:
                    skipped.append(landing.name(target))
            except UserError as error:
                failures.append((scene.path, str(error)))
            except Exception as error:  # whatever is wrong with one scene, the others are made
                _log.debug("%s failed", scene.path, exc_info=True)
                failures.append((scene.path, _reason(error)))
    return Report(tuple(results), tuple(skipped), tuple(failures))


def _reason(error: Exception) -> str:
    if memory.is_shortage(error):
        return "out of memory; lower --tile or --batch-size, or run it as one image with --exact"
    return f"unexpected {type(error).__name__}: {error}"


def _with_polygons_here(request: Request, landing: Landing) -> Request:
    """Polygons that go to the maps' remote folder are made where the maps are."""
    polygons = request.polygons
    if polygons is None or not is_remote(polygons.to):
        return request
    folder, _, name = polygons.to.rpartition("/")
    if not isinstance(landing, RemoteLanding) or folder != landing.folder:
        raise UserError(f"{polygons.to} is not in the folder of the maps; say --polygons gpkg to put them there")
    return dataclasses.replace(request, polygons=dataclasses.replace(polygons, to=str(landing.staging / name)))


def choose_targets(scenes: Sequence[Found], output: str, request: Request) -> dict[Found, Path]:
    """Where each scene's map goes: the output itself for a single scene, else a file of its name in that folder."""
    out = Path(output)
    is_file = out.suffix.lower() in (".tif", ".tiff") and not out.is_dir()
    if len(scenes) > 1 and is_file:
        raise UserError(f"{len(scenes)} scenes cannot all be written to {out}; name a folder")
    if is_file:
        targets = {scenes[0]: out}
    elif out.suffix and not out.is_dir() and not output.endswith("/"):
        raise UserError(f"maps are GeoTIFFs: the output must end in .tif or be a folder, not {out}")
    else:
        targets = {scene: out / f"{scene.name}.tif" for scene in scenes}
    twice = [target for target, count in Counter(targets.values()).items() if count > 1]
    if twice:
        raise UserError(f"two scenes would both be written to {twice[0]}; run them with different outputs")
    if request.polygons is not None and len({request.polygons.path(t) for t in targets.values()}) < len(targets):
        raise UserError("several scenes need several polygon files: say --polygons gpkg to put each beside its map")
    outputs = Counter(path for target in targets.values() for path in request.outputs(target).values())
    twice = [path for path, count in outputs.items() if count > 1]
    if twice:
        raise UserError(f"two outputs would both be {twice[0]}; run the scenes with different outputs")
    refuse_inputs(
        outputs,
        _files_of([scene.path for scene in scenes], request.reading.drivers if any(map(there, outputs)) else None),
    )
    return targets


def _files_of(scenes: Sequence[str], drivers: tuple[str, ...] | None) -> list[str]:
    """What the scenes are read from; only their names where no output is there (None) that could be another file."""
    files = list(scenes)
    if drivers is not None:
        for scene in scenes:
            with contextlib.suppress(Exception):  # one that cannot be opened will be told of when its turn comes
                files += scene_files(scene, drivers)
    return files


def weights_version(model: SegmentationModel) -> str:
    """Twelve hexadecimal digits that tell the model's weights from others."""
    digest = hashlib.sha256(model.name.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:12]

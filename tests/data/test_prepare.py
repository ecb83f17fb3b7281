"""`crisp prepare` on generated archives in the real layouts."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crispseg.cli import main as cli
from crispseg.cli import prepare as verb
from crispseg.data import known, open_folder
from crispseg.data.prepare import Choices, check, make_plan, prepare
from crispseg.errors import UserError
from crispseg.outputs import only_one
from tests.fakedata import fake_geoseg_patches, fake_loveda, fake_mmseg, fake_potsdam, fake_vaihingen

MAKERS: dict[str, Callable[..., Path]] = {
    "potsdam": fake_potsdam,
    "vaihingen": fake_vaihingen,
    "loveda": fake_loveda,
}


def run_prepare(*words: str) -> int:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.run(parser.parse_args(words))


def read(path: Path) -> np.ndarray[Any, Any]:
    with Image.open(path) as picture:
        return np.asarray(picture)


@pytest.mark.parametrize("zipped", [False, True], ids=["unpacked", "zipped"])
@pytest.mark.parametrize("dataset", MAKERS)
def test_archives_become_the_common_layout(dataset: str, zipped: bool, tmp_path: Path) -> None:
    source = MAKERS[dataset](tmp_path / "source", zipped)
    assert run_prepare(dataset, "--source", str(source), "--out", str(tmp_path / "out")) == 0
    folder = open_folder(tmp_path / "out")
    assert folder.protocol.dataset == dataset
    manifest = json.loads((tmp_path / "out" / "dataset.json").read_text())
    expected = {"potsdam": 38, "vaihingen": 33, "loveda": 18}[dataset]
    assert len(manifest["images"]) == expected == len(list((tmp_path / "out" / "images").iterdir()))
    for entry in manifest["images"]:
        for path, facts in entry["files"].items():
            assert (tmp_path / "out" / path).stat().st_size == facts["bytes"]


def test_pixels_and_labels_survive(tmp_path: Path) -> None:
    source = fake_potsdam(tmp_path / "source")
    run_prepare("potsdam", "--source", str(source), "--out", str(tmp_path / "out"))
    out = tmp_path / "out"
    image = read(source / "2_Ortho_RGB" / "top_potsdam_2_13_RGB.tif")
    assert np.array_equal(read(out / "images" / "2_13.png"), image)
    for folder, original in (
        ("masks", "5_Labels_all/top_potsdam_2_13_label.tif"),
        ("masks_eroded", "5_Labels_all_noBoundary/top_potsdam_2_13_label_noBoundary.tif"),
    ):
        colours, ids = read(source / original), read(out / folder / "2_13.png")
        for row, column in np.ndindex(ids.shape):
            colour = tuple(int(v) for v in colours[row, column])
            index = known.ISPRS.colours.index(colour) if colour != (0, 0, 0) else 255
            assert ids[row, column] == index
    manifest = json.loads((out / "dataset.json").read_text())
    entry = next(e for e in manifest["images"] if e["name"] == "2_13")
    counts = [int((read(out / "masks" / "2_13.png") == i).sum()) for i in range(6)]
    assert entry["labels"]["full"]["histogram"] == counts
    assert manifest["protocols"]["potsdam/paper5"]


@pytest.mark.parametrize("kind", ["IRRG", "RGBIR"])
def test_potsdam_with_near_infrared(kind: str, tmp_path: Path) -> None:
    source = fake_potsdam(tmp_path / "source", compositions=(kind,))
    run_prepare("potsdam", "--source", str(source), "--out", str(tmp_path / "out"), "--labels", "full")
    manifest = json.loads((tmp_path / "out" / "dataset.json").read_text())
    bands = ["near_infrared", "red", "green"] if kind == "IRRG" else ["red", "green", "blue", "near_infrared"]
    assert manifest["bands"] == bands
    folder = open_folder(tmp_path / "out")
    record = next(record for record in folder.records("train") if record.name == "2_12")
    original = read(source / f"2_Ortho_{kind}" / f"top_potsdam_2_12_{kind}.tif")
    assert folder.bands == len(bands) and np.array_equal(folder.read_image(record), original)


def test_of_several_compositions_one_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = fake_potsdam(tmp_path / "source", compositions=("RGB", "IRRG"))
    words = ("potsdam", "--source", str(source), "--out", str(tmp_path / "out"), "--check")
    run_prepare(*words)
    assert "rgb images are taken; rgb, irrg are there: choose with --images" in capsys.readouterr().err
    run_prepare(*words, "--images", "irrg")
    assert "irrg images are taken" in capsys.readouterr().err
    with pytest.raises(
        UserError, match="no rgbir images of Potsdam, but rgb and irrg ones: .* give --images rgb; rgbir "
    ):
        make_plan("potsdam", source, Choices(images="rgbir"))


def test_loveda_values_shift_and_nodata_is_ignored(tmp_path: Path) -> None:
    source = fake_loveda(tmp_path / "source")
    run_prepare("loveda", "--source", str(source), "--out", str(tmp_path / "out"))
    original = read(source / "Train" / "Urban" / "masks_png" / "0.png")
    ids = read(tmp_path / "out" / "masks" / "train_urban_0.png")
    assert np.array_equal(ids, np.where(original == 0, 255, original.astype(int) - 1))
    folder = open_folder(tmp_path / "out")
    assert {r.name.split("_")[0] for r in folder.records("train")} == {"train"}
    assert {r.name.split("_")[0] for r in folder.records("val")} == {"val"}


@pytest.mark.parametrize("dataset", ["potsdam", "vaihingen", "loveda"])
def test_mmsegmentation_layout(dataset: str, tmp_path: Path) -> None:
    source = fake_mmseg(tmp_path / "source", dataset)
    run_prepare(dataset, "--source", str(source), "--out", str(tmp_path / "out"))
    folder = open_folder(tmp_path / "out")
    assert folder.protocol.name == (
        "loveda/val7" if dataset == "loveda" else f"{dataset}/mmseg6"
    )  # the first it can do
    if dataset != "loveda":
        assert (
            open_folder(tmp_path / "out", protocol=f"{dataset}/mmseg5")
            .read_mask(folder.records("val")[0], "eroded")
            .size
        )
    record = folder.records("train")[0]
    stem = record.name.removeprefix("train_")
    original = read(source / "ann_dir" / "train" / f"{stem}.png").astype(int)
    ids = folder.read_mask(record, folder.protocol.labels("train"))
    assert np.array_equal(ids, np.where(original == 0, 255, original - 1))


def test_complete_labels_are_preferred_to_the_participants(tmp_path: Path) -> None:
    source = fake_vaihingen(tmp_path / "source")
    for path in source.rglob("gts_for_participants/*.tif"):
        Image.new("RGB", (90, 70), (9, 9, 9)).save(path)
    plan = make_plan("vaihingen", source)
    check(plan)
    assert len(prepare(plan, tmp_path / "out")["images"]) == 33


def test_labels_in_a_folder_of_another_name_are_no_images(tmp_path: Path) -> None:
    """Images and full labels of Vaihingen are called alike."""
    source = fake_vaihingen(tmp_path / "source")
    main = source / "ISPRS_semantic_labeling_Vaihingen"
    shutil.rmtree(main / "gts_for_participants")
    (source / f"{main.name}_ground_truth_COMPLETE").rename(main / "reference")
    with pytest.raises(UserError, match=r"both .*/reference/.*area1.tif and .*/top/.*area1.tif may be the image"):
        check(make_plan("vaihingen", source, Choices(labels="eroded")))
    (main / "reference").rename(main / "labels")
    check(make_plan("vaihingen", source))


def test_geoseg_folders_of_original_tiles(tmp_path: Path) -> None:
    """train_images, train_masks, ... hold the official files, sorted by the user."""
    flat = fake_vaihingen(tmp_path / "flat")
    main = "ISPRS_semantic_labeling_Vaihingen"
    for area in known.VAIHINGEN_TILES:
        side = "test" if area in known.VAIHINGEN_TEST else "train"
        for old, new in (
            (f"{main}/top/top_mosaic_09cm_{area}.tif", f"{side}_images"),
            (f"{main}_ground_truth_COMPLETE/top_mosaic_09cm_{area}.tif", f"{side}_masks"),
            (f"{main}_ground_truth_eroded_COMPLETE/top_mosaic_09cm_{area}_noBoundary.tif", f"{side}_masks_eroded"),
        ):
            (tmp_path / "source" / new).mkdir(parents=True, exist_ok=True)
            shutil.move(flat / old, tmp_path / "source" / new)
    run_prepare("vaihingen", "--source", str(tmp_path / "source"), "--out", str(tmp_path / "out"))
    folder = open_folder(tmp_path / "out", protocol="vaihingen/geoseg6")
    assert len(folder.records("test")) == 17


def test_geoseg_patches_never_teach_padding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = fake_geoseg_patches(tmp_path / "source")
    run_prepare("potsdam", "--source", str(source), "--out", str(tmp_path / "out"))
    assert "padding" in capsys.readouterr().err
    folder = open_folder(tmp_path / "out", protocol="potsdam/geoseg6")
    for record in folder.records("test"):
        mask = folder.read_mask(record, "eroded")
        assert (mask[:5] == 255).all() and (mask[5:] != 255).any()


def test_zip_inside_a_zip(tmp_path: Path) -> None:
    source = fake_potsdam(tmp_path / "source", zipped=True)
    with zipfile.ZipFile(tmp_path / "Potsdam.zip", "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(source.iterdir()):
            archive.write(file, f"Potsdam/{file.name}")
    assert run_prepare("potsdam", "--source", str(tmp_path / "Potsdam.zip"), "--out", str(tmp_path / "out")) == 0
    with zipfile.ZipFile(tmp_path / "packed.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(source / "2_Ortho_RGB.zip", "2_Ortho_RGB.zip")
    with pytest.raises(UserError, match=r"unzip packed\.zip first"):
        make_plan("potsdam", tmp_path / "packed.zip")


def test_a_zip_with_backslashes(tmp_path: Path) -> None:
    """Older .NET, and so Compress-Archive of Windows, does not write the slashes of the format."""
    source = fake_loveda(tmp_path / "source")
    with zipfile.ZipFile(tmp_path / "LoveDA.zip", "w") as archive:
        for file in sorted(source.rglob("*.png")):
            archive.write(file, str(file.relative_to(source)).replace("/", "\\"))
    assert len(make_plan("loveda", tmp_path / "LoveDA.zip").items) == len(make_plan("loveda", source).items)


class Stop(Exception):
    pass


def _stop_after(count: int) -> Callable[..., Iterator[Any]]:
    def track(items: Any, what: str, total: int) -> Iterator[Any]:
        for number, item in enumerate(items):
            if what == "writing" and number == count:
                raise Stop
            yield item

    return track


def test_interrupted_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = fake_potsdam(tmp_path / "source", zipped=True), tmp_path / "out"
    plan = make_plan("potsdam", source)
    with pytest.raises(Stop):
        prepare(plan, out, track=_stop_after(10))
    assert not (out / "dataset.json").exists()  # nothing that could be taken for a finished folder
    with pytest.raises(UserError, match="`crisp prepare` has not finished .*out; run the same command again"):
        open_folder(out)
    with (out / ".prepare.jsonl").open("a") as journal:
        journal.write('{"name": "2_1')  # the line a kill cuts in two
    damaged = out / "masks" / f"{known.POTSDAM_TILES[3]}.png"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 255  # of the same size, so only the hash tells
    damaged.write_bytes(bytes(data))

    written: list[str] = []
    import crispseg.data.prepare as room

    original = room._write_item
    monkeypatch.setattr(room, "_write_item", lambda item, *rest: written.append(item.name) or original(item, *rest))
    with pytest.raises(UserError, match="already holds potsdam in the isprs layout"):
        prepare(make_plan("loveda", fake_loveda(tmp_path / "loveda")), out)
    prepare(plan, out)
    assert written == [known.POTSDAM_TILES[3], *known.POTSDAM_TILES[10:]]
    assert not (out / ".prepare.jsonl").exists()

    fresh = prepare(plan, tmp_path / "fresh")
    again = json.loads((out / "dataset.json").read_text())
    assert json.loads(json.dumps(fresh)) == again
    written.clear()
    prepare(plan, out)  # a finished folder is verified and left alone
    assert written == []


def test_a_finished_folder_that_is_half_written_anew_is_not_opened(tmp_path: Path) -> None:
    """Its dataset.json still tells of the bands that the images had."""
    source, out = fake_potsdam(tmp_path / "source", compositions=("RGB", "IRRG")), tmp_path / "out"
    prepare(make_plan("potsdam", source), out)
    other = Choices(images="irrg")
    with pytest.raises(Stop):
        prepare(make_plan("potsdam", source, other), out, other, _stop_after(10))
    with pytest.raises(UserError, match="has not finished"):
        open_folder(out)
    prepare(make_plan("potsdam", source, other), out, other)
    assert open_folder(out).bands == 3


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    source = fake_potsdam(tmp_path / "source")
    (source / "2_Ortho_RGB" / "top_potsdam_3_11_RGB.tif").unlink()
    (source / "5_Labels_all" / "top_potsdam_4_14_label.tif").unlink()
    wrong = source / "5_Labels_all" / "top_potsdam_2_10_label.tif"
    Image.open(wrong).crop((0, 0, 50, 60)).save(wrong)
    cut = source / "2_Ortho_RGB" / "top_potsdam_6_7_RGB.tif"
    cut.write_bytes(cut.read_bytes()[:2000])
    with pytest.raises(UserError) as caught:
        check(make_plan("potsdam", source))
    message = str(caught.value)
    assert "images missing for 1 of 38 tiles: 3_11; they are in 2_Ortho_RGB.zip" in message
    assert "full labels missing for 1 of 38 tiles: 4_14" in message
    assert "top_potsdam_2_10_label.tif is 50 x 60 px, but its image top_potsdam_2_10_RGB.tif is 96 x 80 px" in message
    assert "top_potsdam_6_7_RGB.tif" in message
    assert not (tmp_path / "out").exists()


def test_a_whole_archive_missing_names_it_and_the_way_round(tmp_path: Path) -> None:
    source = fake_potsdam(tmp_path / "source")
    shutil.rmtree(source / "5_Labels_all_noBoundary")
    with pytest.raises(UserError, match=r"5_Labels_all_noBoundary\.zip.*--labels full"):
        check(make_plan("potsdam", source))
    choices = Choices(labels="full")
    plan = make_plan("potsdam", source, choices)
    check(plan)
    prepare(plan, tmp_path / "out", choices)
    folder = open_folder(tmp_path / "out")
    assert folder.protocol.name == "out/own6"  # no named protocol can be scored without the eroded labels
    with pytest.raises(UserError, match="no eroded labels"):
        folder.read_mask(folder.records("test")[0], "eroded")


def test_missing_tiles_may_be_allowed(tmp_path: Path) -> None:
    source = fake_potsdam(tmp_path / "source")
    (source / "2_Ortho_RGB" / "top_potsdam_7_10_RGB.tif").unlink()
    words = ("potsdam", "--source", str(source), "--out", str(tmp_path / "out"))
    with pytest.raises(UserError, match="7_10"):
        run_prepare(*words)
    run_prepare(*words, "--allow-missing")
    assert len(open_folder(tmp_path / "out", protocol="potsdam/paper5").records("train")) == 22
    with pytest.raises(UserError, match=r"lacks 1 tiles of protocol potsdam/mmseg6: 7_10"):
        open_folder(tmp_path / "out", protocol="potsdam/mmseg6")


def test_unknown_colour_names_file_count_and_place(tmp_path: Path) -> None:
    source = fake_potsdam(tmp_path / "source")
    path = source / "5_Labels_all" / "top_potsdam_4_12_label.tif"
    labels = read(path).copy()
    labels[7, 31], labels[9, 2] = (252, 255, 0), (252, 255, 0)
    Image.fromarray(labels).save(path)
    words = ("potsdam", "--source", str(source), "--out", str(tmp_path / "out"))
    with pytest.raises(UserError) as caught:
        run_prepare(*words)
    message = str(caught.value)
    assert "top_potsdam_4_12_label.tif: 2 pixels" in message and "row 7, column 31: 252,255,0" in message
    assert not (tmp_path / "out" / "dataset.json").exists()

    run_prepare(*words, "--colour-tolerance", "5")
    assert read(tmp_path / "out" / "masks" / "4_12.png")[7, 31] == known.ISPRS.names.index("car")
    run_prepare(*words, "--unknown-colours", "ignore")  # another choice writes the file anew
    assert read(tmp_path / "out" / "masks" / "4_12.png")[7, 31] == 255
    manifest = json.loads((tmp_path / "out" / "dataset.json").read_text())
    mended = {e["name"]: e["labels"]["full"]["mended"] for e in manifest["images"]}
    assert mended["4_12"] == 2 and sum(mended.values()) == 2


def test_class_id_out_of_range(tmp_path: Path) -> None:
    source = fake_loveda(tmp_path / "source")
    path = source / "Val" / "Rural" / "masks_png" / "9.png"
    labels = read(path).copy()
    labels[3, 4] = 11
    Image.fromarray(labels).save(path)
    with pytest.raises(UserError, match=r"9\.png: class id 11 is out of range: 1 pixels, the first at row 3, column 4"):
        run_prepare("loveda", "--source", str(source), "--out", str(tmp_path / "out"))


def test_loveda_pairs_are_checked(tmp_path: Path) -> None:
    source = fake_loveda(tmp_path / "source")
    (source / "Train" / "Urban" / "masks_png" / "1.png").unlink()
    (source / "Val" / "Urban" / "images_png" / "6.png").unlink()
    with pytest.raises(UserError) as caught:
        check(make_plan("loveda", source))
    assert "1 images have no label: train_urban_1" in str(caught.value)
    assert "1 labels have no image: val_urban_6" in str(caught.value)
    run_prepare("loveda", "--source", str(source), "--out", str(tmp_path / "out"), "--allow-missing")
    folder = open_folder(tmp_path / "out", protocol="loveda/val7")
    assert {kind: len(records) for kind, records in folder.splits.items()} == {"train": 5, "val": 5, "test": 0}


def test_what_is_not_the_data_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a folder nor a zip"):
        make_plan("potsdam", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="nothing of vaihingen was found"):
        make_plan("vaihingen", tmp_path / "empty")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "2_Ortho_RGB.zip").write_bytes(b"not a zip")
    with pytest.raises(UserError, match=r"2_Ortho_RGB\.zip is not a readable zip"):
        make_plan("potsdam", tmp_path / "broken")
    with pytest.raises(UserError, match="unknown data set 'postdam'; did you mean 'potsdam'"):
        make_plan("postdam", tmp_path)


def test_out_that_holds_another_set_or_cannot_be_written(tmp_path: Path) -> None:
    loveda = fake_loveda(tmp_path / "loveda")
    run_prepare("loveda", "--source", str(loveda), "--out", str(tmp_path / "out"))
    vaihingen = fake_vaihingen(tmp_path / "vaihingen")
    with pytest.raises(UserError, match="already holds loveda"):
        run_prepare("vaihingen", "--source", str(vaihingen), "--out", str(tmp_path / "out"))
    crops = fake_mmseg(tmp_path / "crops", "loveda")
    with pytest.raises(UserError, match="loveda in the loveda layout, this is loveda in the mmsegmentation layout"):
        run_prepare("loveda", "--source", str(crops), "--out", str(tmp_path / "out"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write"):
        run_prepare("vaihingen", "--source", str(vaihingen), "--out", str(tmp_path / "file" / "out"))


def test_read_only_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = fake_loveda(tmp_path / "source")

    def refuse(path: Path, data: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)  # the tests may run as root, whom no permission stops
    with pytest.raises(UserError, match=r"may not write .*\.png: Permission denied"):
        run_prepare("loveda", "--source", str(source), "--out", str(tmp_path / "out"))
    assert not list((tmp_path / "out").rglob("*.png"))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = fake_vaihingen(tmp_path / "source", zipped=True)
    words = ["prepare", "vaihingen", "--source", str(source), "--out", str(tmp_path / "out")]
    assert cli.main([*words, "--check"]) == 0
    assert not (tmp_path / "out").exists()
    assert cli.main(words) == 0
    assert "wrote 33 images" in capsys.readouterr().out
    assert cli.main(["prepare", "vaihingen", "--source", str(tmp_path / "no"), "--out", str(tmp_path / "o")]) == 1
    assert capsys.readouterr().err.startswith("crisp: ")


def test_a_corrected_label_is_taken_over_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of equal size and time: the content decides."""
    source = fake_loveda(tmp_path / "source")
    words = ("loveda", "--source", str(source), "--out", str(tmp_path / "out"))
    run_prepare(*words)
    label = sorted((source / "Train" / "Urban" / "masks_png").iterdir())[0]
    for value in (3, 5):
        about = label.stat()
        Image.fromarray(np.full((64, 64), value, np.uint8)).save(label, compress_level=0)
        if value == 5:
            assert label.stat().st_size == about.st_size
            os.utime(label, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert run_prepare(*words) == 0
        (made,) = (tmp_path / "out" / "masks").glob(f"*_{label.stem}.png")
        assert (read(made) == value - 1).all()
    assert "written anew" in capsys.readouterr().err


def test_nothing_of_others_is_written_over(tmp_path: Path) -> None:
    source = fake_loveda(tmp_path / "source")
    out = tmp_path / "out"
    words = ("loveda", "--source", str(source), "--out", str(out))
    out.mkdir()
    (out / "split.csv").write_text("mine")
    with pytest.raises(UserError, match="split.csv is there already"):
        run_prepare(*words)
    assert (out / "split.csv").read_text() == "mine"
    (out / "split.csv").unlink()
    (tmp_path / "letter").write_text("keep")
    (out / ".prepare.jsonl").symlink_to(tmp_path / "letter")
    with pytest.raises(UserError, match="is a link"):
        run_prepare(*words)
    assert (tmp_path / "letter").read_text() == "keep"
    (out / ".prepare.jsonl").unlink()
    with only_one(out, "preparing"), pytest.raises(UserError, match="another run is preparing"):
        run_prepare(*words)

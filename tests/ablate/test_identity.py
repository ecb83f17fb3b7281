from crispseg.ablate.identity import default_description, describe, fingerprint, same
from crispseg.train.config import config_from


def described(options=None, words=(), **values):
    return describe(config_from({"model": {"name": "crisp_nano", "options": options or {}}, **values}, words))


def test_two_ways_of_asking_for_one_network_are_alike():
    plain = described()
    for options in (
        {"dco": True},
        {"dco": {"residual": True, "skip": "after"}},
        {"neck": "topdown", "layers": 2},
        {"prototypes": 3},
    ):
        assert described(options) == plain
    assert described({"dco": False}) == described({"dco": {"residual": False, "highpass": False, "rebalance": False}})


def test_other_networks_losses_data_and_seeds_are_not():
    others = [
        described(),
        described({"dco": False}),
        described({"prototypes": 2}),
        described({"dco": {"skip": "before"}}),
        described(words=["loss.orth=0"]),
        described(words=["seed=1"]),
        described(words=["data.protocol=dubai/own5"]),
        described(words=["data.path=elsewhere"]),
    ]
    assert len({fingerprint(one) for one in others}) == len(others)


def test_places_and_machines_do_not_count():
    words = ["data.protocol=dubai/own5"]
    assert described(words=words) == described(
        words=[*words, "data.path=b", "out=c", "workers=3", "device=cpu", "samples=0", "log_every=7", "data.cache=d"]
    )


def test_a_folder_is_the_same_however_it_is_spelt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named, defaults = described(words=["data.path=scenes"]), default_description("crisp_nano")
    for word in ("scenes/", "./scenes", "other/../scenes"):
        assert described(words=[f"data.path={word}"]) == named
    in_full = described(words=[f"data.path={tmp_path / 'scenes'}"])
    assert same(in_full, named, defaults) and same(named, in_full, defaults)
    assert not same(named, described(words=["data.path=other/scenes"]), defaults)


def test_a_network_that_cannot_be_made_keeps_its_options():
    assert described({"dim": 15})["model"]["options"] == {"dim": 15}


def test_runs_made_before_a_key_existed():
    now, defaults = described({"prototypes": 2}), default_description("crisp_nano")
    assert same(now, now, defaults)
    earlier = {key: value for key, value in now.items() if key != "ema"}
    earlier["model"] = {**now["model"], "options": {k: v for k, v in now["model"]["options"].items() if k != "neck"}}
    assert same(earlier, now, defaults)  # both are at their defaults
    assert not same(earlier, {**now, "ema": 0.9}, defaults)
    assert not same(earlier, described({"prototypes": 2, "neck": "concat"}), defaults)
    assert not same({**now, "gone": 1}, now, defaults)
    assert not same(earlier, described({"prototypes": 4}), defaults)


def test_what_a_run_starts_from_is_part_of_it():
    assert described(words=["model.weights=none"]) == described()
    assert described(words=["model.weights=vssd_nano"])["model"]["weights"] == "vssd_nano"

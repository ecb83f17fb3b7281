"""Measured on the authors' modules: totals and parts in parameters, MACs of one 3 x 512 x 512 image."""

from __future__ import annotations

from pathlib import Path

KEYS = Path(__file__).parent / "keys"

# name: parameters with 5, 6, 7 classes; GMACs; classes at which those were counted
TOTALS = {
    "sfanet_effb3": ((10_699_993, 10_700_121, 10_700_249), 7.057, 6),
    "unetformer_r18": ((11_724_766, 11_724_894, 11_725_022), 11.707, 6),
    "banet_restlite": ((12_712_806, 12_729_254, 12_745_702), 15.054, 6),
    "abcnet_r18": ((13_629_315, 13_666_563, 13_703_811), 15.609, 6),
    "aerialformer_tiny": ((42_711_087, 42_711_136, 42_711_185), 49.760, 6),
    "dcswin_tiny": ((45_631_484, 45_631_580, 45_631_676), 48.254, 6),
    "d2ls_convnextb": ((94_027_428, 94_029_736, 94_032_044), 93.277, 5),
    "pyramidmamba_swinb": ((125_107_128, 125_107_192, 125_107_256), 109.834, 6),
}
PEERS = tuple(TOTALS)

# other sizes: millions of parameters and GMACs, six classes, as published to two decimals
VARIANTS = {
    "dcswin_small": (66.95, 71.97),
    "dcswin_base": (118.93, 127.28),
    "aerialformer_small": (64.03, 73.48),
    "aerialformer_base": (113.82, 132.54),
}

# parts of each network with six classes, by our module names
PARTS = {
    "abcnet_r18": {
        "cp": 12_464_770,
        "cp.resnet": 11_176_512,
        "cp.arm16": 316_065,
        "cp.arm32": 610_977,
        "cp.conv_head32": 147_712,
        "cp.conv_head16": 147_712,
        "cp.conv_avg": 65_792,
        "sp": 91_968,
        "fam": 148_289,
        "conv_out": 689_024,
        "conv_out16": 98_816,
        "conv_out32": 173_696,
    },
    "banet_restlite": {
        "cp.ResT": 9_995_300,
        "cp.ResT.stem": 29_280,
        "cp.ResT.patch_embed_2": 75_392,
        "cp.ResT.patch_embed_3": 298_240,
        "cp.ResT.patch_embed_4": 1_186_304,
        "cp.ResT.stage1": 110_720,
        "cp.ResT.stage2": 403_724,
        "cp.ResT.stage3": 1_585_704,
        "cp.ResT.stage4": 6_304_912,
        "cp.ResT.norm": 1_024,
        "cp.AE": 1_771_649,
        "cp.conv_avg": 33_024,
        "sp": 91_968,
        "fam": 148_289,
        "conv_out": 689_024,
    },
    "dcswin_tiny": {
        "backbone": 27_520_698,
        "decoder.dcfam.conv4": 589_824,
        "decoder.dcfam.conv1": 9_216,
        "decoder.dcfam.lf4": 380_160,
        "decoder.dcfam.lf3": 97_920,
        "decoder.dcfam.ca": 1,
        "decoder.dcfam.pa": 184_801,
        "decoder.dcfam.down12": 664_704,
        "decoder.dcfam.down231": 2_656_512,
        "decoder.dcfam.down232": 2_656_512,
        "decoder.dcfam.down34": 10_621_440,
        "decoder.segmentation_head": 83_712,
        "decoder.up": 166_080,
    },
    "unetformer_r18": {
        "backbone": 11_176_512,
        "decoder.pre_conv": 32_896,
        "decoder.b4": 96_968,
        "decoder.b3": 96_968,
        "decoder.b2": 96_968,
        "decoder.b4.attn.qkv": 12_288,
        "decoder.b4.attn.local1": 36_992,
        "decoder.b4.attn.local2": 4_224,
        "decoder.b4.attn.proj": 8_320,
        "decoder.b4.mlp": 33_088,
        "decoder.p3": 53_378,
        "decoder.p2": 45_186,
        "decoder.p1": 51_266,
        "decoder.segmentation_head": 37_376,
        "decoder.aux_head": 37_376,
    },
    "pyramidmamba_swinb": {
        "backbone": 86_876_536,
        "decoder.b3": 37_528_576,
        "decoder.b3.mamba.pool_layers": 525_312,
        "decoder.b3.mamba.mamba": 14_914_560,
        "decoder.b3.conv_ffn": 22_088_704,
        "decoder.up_conv": 443_136,
        "decoder.pre_conv": 147_712,
        "decoder.head": 111_232,
    },
    "sfanet_effb3": {
        "backbone": 10_103_336,
        "decoder.pre_conv": 24_704,
        "decoder.b4": 96_968,
        "decoder.p3": 45_698,
        "decoder.p2": 40_066,
        "decoder.p1": 49_218,
        "decoder.fam1": 339,
        "decoder.fam2": 2_176,
        "decoder.down12": 1_680,
        "decoder.down231": 6_936,
        "decoder.down232": 6_936,
        "decoder.down34": 53_376,
        "decoder.segmentation_head": 37_376,
        "decoder.aux_head": 37_376,
    },
    "aerialformer_tiny": {
        "backbone": 27_599_706,
        "backbone.stem": 79_008,
        "decode_head.dilated_convs.0.0": 2_950_656,
        "decode_head.dilated_convs.0.1": 5_309_952,
        "decode_head.up_convs.1": 1_180_416,
        "decode_head.dilated_convs.1.0": 2_654_976,
        "decode_head.dilated_convs.1.1": 1_327_872,
        "decode_head.up_convs.2": 295_296,
        "decode_head.dilated_convs.2.0": 663_936,
        "decode_head.dilated_convs.2.1": 332_160,
        "decode_head.up_convs.3": 73_920,
        "decode_head.dilated_convs.3.0": 166_080,
        "decode_head.dilated_convs.3.1": 83_136,
        "decode_head.up_convs.4": 18_528,
        "decode_head.dilated_convs.4.0": 33_376,
        "decode_head.dilated_convs.4.1": 20_832,
        "decode_head.conv_seg": 294,
    },
    "d2ls_convnextb": {
        "backbone": 87_564_416,
        "linear_c": 492_544,
        "aggregator": 262_144,
        "decoder.interactor.layers": 4_738_560,
        "decoder.interactor.layers.0": 1_579_520,
        "decoder.token.basic_queries": 1_536,
        "decoder.token.token_mlp": 263_168,
        "decoder.feature_modulator.mlp1": 262_400,
        "decoder.feature_modulator.gmp_branch": 16_512,
        "decoder.feature_modulator.gap_branch": 16_512,
        "decoder.feature_modulator.mlp2": 143_896,
        "decoder.upsampler": 128,
        "decoder.output_hypernetwork_mlps": 135_696,
    },
}

# the authors' parameter and buffer names: file, and our name of that network
KEY_FILES = {
    "abcnet": "abcnet_r18",
    "aerialformer_tiny": "aerialformer_tiny",
    "banet": "banet_restlite",
    "d2ls": "d2ls_convnextb",
    "dcswin_small": "dcswin_small",
    "dcswin_tiny": "dcswin_tiny",
    "pyramidmamba": "pyramidmamba_swinb",
    "sfanet": "sfanet_effb3",
    "unetformer": "unetformer_r18",
}


def authors_shapes(file: str) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter and buffer of the authors' module, six classes."""
    lines = (KEYS / f"keys_{file}.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return {name: tuple(int(n) for n in shape.split("x") if n != "scalar") for _, name, shape in rows}

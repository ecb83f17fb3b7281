"""Shifted windows against a loop over pixels, and the whole encoder against timm's own."""

import pytest
import torch
from torch import Tensor, nn

from crispseg.models.libraries import import_timm
from crispseg.peers.swin import TINY, Swin, shift_mask


@pytest.fixture(scope="module")
def encoder() -> Swin:
    torch.manual_seed(1)
    encoder = Swin(TINY, in_channels=3, drop_path=0.3, pad_first=True, output_norms=True).eval()
    for name, parameter in encoder.named_parameters():
        if "bias" in name:  # also the relative position tables
            nn.init.normal_(parameter, std=0.5)
    return encoder


def window_attention_by_loops(attention: nn.Module, tokens: Tensor, ids: Tensor) -> Tensor:
    """(49, C) tokens of one window; tokens of different ids came from different ends of the map."""
    heads, channels = attention.num_heads, tokens.shape[1]
    width = channels // heads
    qkv = attention.qkv(tokens)
    out = torch.zeros_like(tokens)
    for h in range(heads):
        q, k, v = (qkv[:, part * channels + h * width :][:, :width] for part in range(3))
        logits = torch.empty(49, 49)
        for a in range(49):
            for b in range(49):
                row, column = a // 7 - b // 7 + 6, a % 7 - b % 7 + 6
                logits[a, b] = q[a] @ k[b] / width**0.5 + attention.relative_position_bias_table[row * 13 + column, h]
                if ids[a] != ids[b]:
                    logits[a, b] -= 100
        out[:, h * width : (h + 1) * width] = logits.softmax(-1) @ v
    return attention.proj(out)


def shifted_by_loops(attention: nn.Module, x: Tensor) -> Tensor:
    """Pad to multiples of 7, then move everything 3 up and left around the edge; (H, W, C)."""
    height, width, channels = x.shape
    rows, columns = height + -height % 7, width + -width % 7
    moved = torch.zeros(rows, columns, channels)
    ids = torch.zeros(rows, columns)
    for i in range(rows):
        for j in range(columns):
            source = ((i + 3) % rows, (j + 3) % columns)
            if source[0] < height and source[1] < width:
                moved[i, j] = x[source]
            ids[i, j] = 2 * (i + 3 >= rows) + (j + 3 >= columns)
    out = torch.zeros(height, width, channels)
    for top in range(0, rows, 7):
        for left in range(0, columns, 7):
            window = moved[top : top + 7, left : left + 7].reshape(49, channels)
            attended = window_attention_by_loops(attention, window, ids[top : top + 7, left : left + 7].flatten())
            for n in range(49):
                i, j = (top + n // 7 + 3) % rows, (left + n % 7 + 3) % columns
                if i < height and j < width:
                    out[i, j] = attended[n]
    return out


def test_shifted_windows_of_a_padded_map(encoder: Swin) -> None:
    attention, x = encoder.layers[0].blocks[1].attn, torch.randn(1, 9, 14, 96)
    mask = shift_mask((9, 14), 7, (3, 3), x)
    with torch.no_grad():
        ours = encoder.attend(attention, x, 7, (3, 3), mask)[0]
        torch.testing.assert_close(ours, shifted_by_loops(attention, x[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(224, 224), (256, 224)])
def test_timms_order_gives_timms_outputs(encoder: Swin, height: int, width: int) -> None:
    """64 rows are no multiple of 7; the last stage's 7 columns fit one window, so timm does not shift them."""
    theirs = (
        import_timm()
        .create_model("swin_tiny_patch4_window7_224", features_only=True, img_size=(height, width), pretrained=False)
        .eval()
    )
    weights = {name.replace("layers.", "layers_"): tensor for name, tensor in encoder.state_dict().items()}
    theirs.load_state_dict({n: t for n, t in weights.items() if not n.startswith("norm")})
    ours = Swin(TINY, in_channels=3, drop_path=0.0, pad_first=False, output_norms=False).eval()
    ours.load_state_dict({n: t for n, t in encoder.state_dict().items() if not n.startswith("norm")})
    image = torch.randn(1, 3, height, width)
    with torch.no_grad():
        for a, b in zip(ours(image), theirs(image), strict=True):
            torch.testing.assert_close(a, b.permute(0, 3, 1, 2), rtol=1e-4, atol=1e-4)


def test_the_orders_agree_where_nothing_is_padded(encoder: Swin) -> None:
    """At 448 px the maps are 112, 56, 28, 14: multiples of 7, larger than it."""
    other = Swin(TINY, in_channels=3, drop_path=0.0, pad_first=False, output_norms=True).eval()
    other.load_state_dict(encoder.state_dict())
    image = torch.randn(1, 3, 448, 448)
    with torch.no_grad():
        for a, b in zip(encoder(image), other(image), strict=True):
            assert torch.equal(a, b)


def test_patch_merging_concatenates_column_by_column(encoder: Swin) -> None:
    """(even row, even column), (odd, even), (even, odd), (odd, odd)."""
    merge, x = encoder.layers[1].downsample, torch.randn(1, 4, 6, 96)
    quadrants = [x[:, i::2, j::2] for i, j in ((0, 0), (1, 0), (0, 1), (1, 1))]
    truth = merge.reduction(merge.norm(torch.cat(quadrants, -1)))
    torch.testing.assert_close(merge(x), truth)


@pytest.mark.parametrize("size", [(1, 1), (5, 33), (33, 47)])
def test_sizes_round_up_and_outputs_are_normalised(encoder: Swin, size: tuple[int, int]) -> None:
    with torch.no_grad():
        features = encoder(torch.randn(1, 3, *size))
    for i, feature in enumerate(features):
        assert feature.shape == (1, 96 * 2**i, *(-(-n // (4 * 2**i)) for n in size))
        norm = getattr(encoder, f"norm{i}")
        centred = feature - norm.bias.view(1, -1, 1, 1)
        torch.testing.assert_close(centred.mean(1), torch.zeros_like(centred[:, 0]), atol=1e-4, rtol=0)

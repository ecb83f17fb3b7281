"""An oracle: public VSSD's features computed from a state dict with its names, straight from the formulas.

Written apart from crispseg.models.vssd: channels first, one function per sentence of the method, no modules.
"""

import torch
from torch.nn import functional as F


def features(weights, image, depths, heads, state, attention_last=True):
    """Four feature maps of (B, bands, H, W), in the dtype of the weights."""

    def conv_bn(x, name, stride=1, relu=True):
        kernel = weights[f"{name}.conv.weight"]
        x = F.conv2d(x, kernel, weights.get(f"{name}.conv.bias"), stride, kernel.shape[-1] // 2)
        mean, var = weights[f"{name}.norm.running_mean"], weights[f"{name}.norm.running_var"]
        scale = weights[f"{name}.norm.weight"] / (var + 1e-5).sqrt()
        x = (x - mean[:, None, None]) * scale[:, None, None] + weights[f"{name}.norm.bias"][:, None, None]
        return x.clamp(min=0) if relu else x

    def depthwise(x, name, stride=1):
        kernel = weights[f"{name}.weight"]
        return F.conv2d(x, kernel, weights[f"{name}.bias"], stride, 1, groups=kernel.shape[0])

    def norm(x, name):  # over channels, axis 1
        mean, var = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
        shape = (1, -1, *[1] * (x.dim() - 2))
        return (x - mean) / (var + 1e-5).sqrt() * weights[f"{name}.weight"].view(shape) + weights[f"{name}.bias"].view(
            shape
        )

    def linear(x, name):
        y = torch.einsum("oc,bchw->bohw", weights[f"{name}.weight"], x)
        bias = weights.get(f"{name}.bias")
        return y if bias is None else y + bias[:, None, None]

    def ncssd(x, name, head_count):
        inner = weights[f"{name}.out_proj.weight"].shape[1]
        z, xbc, dt = linear(x, f"{name}.in_proj").split([inner, inner + 2 * state, head_count], dim=1)
        xbc = depthwise(xbc, f"{name}.conv2d")
        xbc = xbc * torch.sigmoid(xbc)
        v, key, query = xbc.flatten(2).split([inner, state, state], dim=1)  # (B, channels, L)
        dt = torch.log1p(torch.exp(dt.flatten(2) + weights[f"{name}.dt_bias"][:, None]))
        gain = dt * torch.exp(weights[f"{name}.A_log"])[:, None]
        width = inner // head_count
        rows = []
        for h in range(head_count):
            value = v[:, h * width : (h + 1) * width]
            attention = torch.einsum("bnj,bni->bij", key, query)  # every pair of tokens, O(L^2)
            fused = torch.einsum("bij,bpj->bpi", attention, value * gain[:, h : h + 1])
            rows.append(fused + weights[f"{name}.D"][h] * value)
        y = norm(torch.cat(rows, 1), f"{name}.norm").view_as(z) * z
        return linear(y, f"{name}.out_proj")

    def attention(x, name, head_count):
        q, k, v = linear(x, f"{name}.to_qkv").flatten(2).chunk(3, dim=1)
        width = q.shape[1] // head_count
        rows = []
        for h in range(head_count):
            part = slice(h * width, (h + 1) * width)
            scores = torch.einsum("bci,bcj->bij", q[:, part], k[:, part]) / width**0.5
            rows.append(torch.einsum("bij,bcj->bci", scores.softmax(-1), v[:, part]))
        return linear(torch.cat(rows, 1).view_as(x), f"{name}.to_out")

    x = conv_bn(image, "patch_embed.conv1", stride=2)
    x = x + conv_bn(conv_bn(x, "patch_embed.conv2.0"), "patch_embed.conv2.1", relu=False)
    x = conv_bn(conv_bn(x, "patch_embed.conv3.0", stride=2), "patch_embed.conv3.1", relu=False)
    result = []
    for i in range(4):
        for j in range(depths[i]):
            block = f"layers.{i}.blocks.{j}"
            mix = attention if i == 3 and attention_last else ncssd
            x = x + depthwise(x, f"{block}.cpe1")
            x = x + mix(norm(x, f"{block}.norm1"), f"{block}.attn", heads[i])
            x = x + depthwise(x, f"{block}.cpe2")
            hidden = linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1")
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
            x = x + linear(hidden, f"{block}.mlp.fc2")
        result.append(norm(x, f"outnorm{i}"))
        if i < 3:
            down = f"layers.{i}.downsample.conv"
            x = linear_conv(x, weights, f"{down}.0.conv").clamp(min=0)
            x = depthwise(x, f"{down}.1.conv", stride=2).clamp(min=0)
            x = conv_bn(x, f"{down}.2", relu=False)
    return result


def linear_conv(x, weights, name):
    return F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

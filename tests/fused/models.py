"""Small models whose BatchNorms and gates are not at their trivial start, so that folding them shows."""

import torch
from torch import nn

import crispseg
from crispseg.models.dco import DCO

SMALL = {"width": 8, "depths": (1, 1, 2, 1), "heads": (1, 1, 2, 2), "state": 4}
SMALL_CRISP = SMALL | {"dim": 16, "attention_heads": 2, "mlp_dim": 24}
SMALL_UPER = SMALL | {"channels": 16, "aux_channels": 8}


def small_crisp(classes=3, bands=3, **options):
    return unsettled(crispseg.create_model("crisp_nano", classes, bands, **SMALL_CRISP | options))


def unsettled(model):
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.LayerNorm) and module.weight is not None:
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(std=0.3)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.3)
                module.running_var.uniform_(0.5, 2.0)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.normal_(std=0.1)
            if isinstance(module, DCO):
                for gate in module.parameters():
                    gate.normal_(std=0.5)
    return model.eval()

"""Networks that turn images into saliency maps, on any backbone that timm has."""

from congruency.saliency.models.backbone import Backbone
from congruency.saliency.models.base import SaliencyModel
from congruency.saliency.models.dinet import DilatedInception, DINet
from congruency.saliency.models.registry import MODELS, create, load_model, save_model
from congruency.saliency.models.salicon import SALICON
from congruency.saliency.models.weights import load_backbone_weights

__all__ = [
    "MODELS",
    "SALICON",
    "Backbone",
    "DINet",
    "DilatedInception",
    "SaliencyModel",
    "create",
    "load_backbone_weights",
    "load_model",
    "save_model",
]

"""The built-in models by name. Each is a function of the input's shape and the number of classes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedrep.errors import SettingsError
from fedrep_trainers.resnet import resnet20
from fedrep_trainers.torchvision_import import import_torchvision

Shape = tuple[int, int, int]
ModelBuilder = Callable[..., nn.Module]


def logistic(shape: Shape, classes: int) -> nn.Module:
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))


def mlp(shape: Shape, classes: int, hidden: tuple[int, ...] = (128,)) -> nn.Module:
    channels, height, width = shape
    sizes = [channels * height * width, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def cnn(shape: Shape, classes: int, width: int = 16) -> nn.Module:
    """Two convolutions with pooling, two linear layers; no normalisation, so nothing but the vector."""
    channels, height, breadth = shape
    pixels = (height // 4) * (breadth // 4)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * pixels, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


MODELS: dict[str, ModelBuilder] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "resnet20": lambda shape, classes, **options: resnet20(shape[0], classes, norm="batch", **options),
    "resnet20_gn": lambda shape, classes, **options: resnet20(shape[0], classes, norm="group", **options),
}


class GrayAsColour(nn.Module):
    """torchvision's models expect three channels; a gray image is shown to all three."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Any:
        return self.inner(inputs.expand(-1, 3, -1, -1))


def torchvision_model(name: str, shape: Shape, classes: int, **options: Any) -> nn.Module:
    models = import_torchvision().models
    if name not in models.list_models():
        raise SettingsError(f"torchvision has no model {name!r}; `torchvision.models.list_models()` lists them")
    inner: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    return inner if shape[0] == 3 else GrayAsColour(inner)


def build_model(
    name: str,
    shape: Shape,
    classes: int,
    seed: int,
    options: dict[str, Any],
    models: Mapping[str, ModelBuilder] = MODELS,
) -> nn.Module:
    """The same name, options and seed give the same initial parameters, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            if name.startswith("torchvision:"):
                return torchvision_model(name.removeprefix("torchvision:"), shape, classes, **options)
            if name not in models:
                known = ", ".join([*models, "torchvision:<name>"])
                raise SettingsError(f"there is no model {name!r}; choose one of {known}, or bring one by user_code")
            return models[name](shape, classes, **options)
        except TypeError as error:
            raise SettingsError(f"model_options do not fit model {name!r}: {error}") from error

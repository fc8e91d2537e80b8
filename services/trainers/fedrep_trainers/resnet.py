"""ResNet-20 for CIFAR-10 (He et al., 2016, section 4.2), with projection shortcuts: d = 272,474 as in the paper.

With GroupNorm (8 groups) the parameters are the same in number, and there are no statistics outside of the vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


class ResidualBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = norm(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride=stride, bias=False), norm(outside))
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.relu(self.norm1(self.conv1(inputs)))
        out: Tensor = self.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))
        return out


def resnet20(channels: int, classes: int, norm: Literal["batch", "group"], width: int = 16) -> nn.Module:
    make_norm: Norm = nn.BatchNorm2d if norm == "batch" else lambda size: nn.GroupNorm(8, size)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        make_norm(width),
        nn.ReLU(),
    ]
    inside = width
    for stage in range(3):
        outside = width * 2**stage
        for block in range(3):
            layers.append(ResidualBlock(inside, outside, 2 if stage and not block else 1, make_norm))
            inside = outside
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)]
    network = nn.Sequential(*layers)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network

"""torchvision for Opacus' test suites where it is not installed: they take random pictures from it, and a model that a validator looks at."""

import contextlib
import sys
import types
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers.utils import is_torchvision_available


class WithBatchNorm(nn.Module):
    """A ResNet as a validator sees it: convolution, batch norm, classifier."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(32, 10)

    def forward(self, x):
        return self.classifier(self.features(x))


def stand_ins() -> list[str]:
    """Their names."""

    class FakeData(Dataset):
        def __init__(self, size, image_size, num_classes, transform=None, **_):
            generator = torch.Generator().manual_seed(size)
            self.pictures = torch.randn(size, *image_size, generator=generator)
            self.labels = torch.randint(0, num_classes, (size,), generator=generator)

        def __getitem__(self, i):
            return self.pictures[i], int(self.labels[i])

        def __len__(self):
            return len(self.labels)

    def nothing(*_args, **_kwargs):
        return lambda x: x

    vision, datasets, transforms = (types.ModuleType(n) for n in ("torchvision", "torchvision.datasets", "torchvision.transforms"))
    datasets.FakeData = FakeData
    transforms.Compose = transforms.ToTensor = transforms.Normalize = nothing
    vision.datasets, vision.transforms = datasets, transforms
    models = types.ModuleType("torchvision.models")
    models.resnet18 = models.mobilenet_v3_small = lambda **_: WithBatchNorm()
    models.densenet121 = lambda **_: WithBatchNorm()
    vision.models = models
    for module in (vision, datasets, transforms, models):
        sys.modules.setdefault(module.__name__, module)
    return [module.__name__ for module in (vision, datasets, transforms, models)]


@contextlib.contextmanager
def torchvision_or_stand_ins() -> Iterator[None]:
    """Afterwards it is not there again, for whoever asks later whether it is installed."""
    try:
        import torchvision  # noqa: F401

        names = []
    except ImportError:
        is_torchvision_available()  # transformers remembers that it is not there
        names = stand_ins()
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]

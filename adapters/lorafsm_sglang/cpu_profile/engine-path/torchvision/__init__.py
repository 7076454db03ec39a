"""Stand-in for ``torchvision`` in an engine process that serves text only.

SGLang imports ``torchvision.transforms`` for multimodal models; the wheel's operators need the
accelerator build of torch.  Submodules and names resolve; a call raises.
"""

import enum
import importlib.machinery
import sys
import types

__version__ = "0.0.0"
__path__ = []


class InterpolationMode(enum.Enum):
    """The resize modes that processors name in their default arguments."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _TextOnlyModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(f"{self.__name__}.{name}")
        path = f"{self.__name__}.{name}"
        if name == "InterpolationMode":
            return InterpolationMode

        def refuse(*args, **kwargs):
            raise NotImplementedError(f"{path} was called, but this engine serves text only")

        if name[:1].isupper():
            return type(name, (), {"__init__": refuse, "__module__": self.__name__})
        refuse.__name__ = name
        return refuse


class _Finder:
    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith(__name__ + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _TextOnlyModule(spec.name)

    def exec_module(self, module):
        """Nothing to run: names are made when they are asked for."""


sys.meta_path.insert(0, _Finder())

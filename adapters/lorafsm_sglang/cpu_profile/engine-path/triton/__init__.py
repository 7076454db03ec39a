"""Stand-in for ``triton`` in an engine process without an accelerator.

SGLang and torch import triton at module level and decorate kernels with it; on the CPU path no
kernel is launched.  Here every name resolves, every decorator keeps the function, and a launch
raises `NotImplementedError`.  No kernel result is ever made up.
"""

import importlib.machinery
import sys
import types

__version__ = "3.0.0"
__path__ = []


class Kernel:
    """What ``@triton.jit`` leaves behind: it can be named and inspected, not launched."""

    def __init__(self, function):
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function

    def _refuse(self, *args, **kwargs):
        raise NotImplementedError(f"triton kernel {self.__name__!r} was launched, but this engine runs the CPU profile")

    __call__ = _refuse
    __getitem__ = _refuse
    run = _refuse
    warmup = _refuse


def _decorate(target):
    return target if isinstance(target, (Kernel, type)) else Kernel(target)


class Placeholder:
    """A triton name with no meaning here: a decorator, a dtype or a namespace, as it is used."""

    def __init__(self, path):
        self._path = path

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{self._path}.{name}")
        value = _resolve(self._path, name)
        self.__dict__[name] = value
        return value

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and not kwargs and callable(args[0]):
            return _decorate(args[0])
        # A decorator with options.  It is a plain function on purpose: code that asks it for a
        # driver's answer gets AttributeError and falls back to the CPU.
        return _decorate

    def __repr__(self):
        return f"<triton stand-in {self._path}>"

    def __bool__(self):
        return False


class _StandInModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{self.__name__}.{name}")
        value = _resolve(self.__name__, name)
        setattr(self, name, value)
        return value


class Config:
    """The arguments of one ``triton.autotune`` candidate, kept and never tried."""

    def __init__(self, kwargs=None, num_warps=4, num_stages=2, **options):
        self.kwargs = dict(kwargs or {})
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.options = options


class constexpr:
    """A compile-time constant; only its value is kept."""

    def __init__(self, value=None):
        self.value = value


def cdiv(numerator, denominator):
    """Quotient of two ints, rounded up (host-side arithmetic, so it is real)."""
    return -(numerator // -denominator)


def next_power_of_2(number):
    """Smallest power of two that is not below ``number`` (host-side arithmetic, so it is real)."""
    return 1 if number <= 1 else 1 << (number - 1).bit_length()


def _resolve(owner, name):
    if name in ("cdiv", "next_power_of_2", "constexpr", "Config"):
        return globals()[name]
    if name.endswith("triton_key"):
        return lambda: "stand-in"
    if name[:1].isupper():
        # Used as a base class, in isinstance() or in an except clause.
        base = Exception if name.endswith(("Error", "OutOfResources")) else object
        return type(name, (base,), {"__module__": owner})
    return Placeholder(f"{owner}.{name}")


class _Finder:
    """Answers ``import triton.anything``; ``triton`` itself is found on the path as usual."""

    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith(__name__ + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _StandInModule(spec.name)

    def exec_module(self, module):
        """Nothing to run: names are made when they are asked for."""


def __getattr__(name):
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(f"triton.{name}")
    value = _resolve(__name__, name)
    globals()[name] = value
    return value


sys.meta_path.insert(0, _Finder())

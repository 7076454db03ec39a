"""Stand-in for ``sgl_kernel`` in an engine process without an accelerator.

With ``SGLANG_USE_CPU_ENGINE=1`` SGLang imports a few ``*_cpu`` operators by name that only
speculative decoding calls.  The names resolve; a call raises.  Any other name is missing, so that
SGLang's own probes for kernels see that there are none.
"""


def __getattr__(name):
    if name.startswith("_") or not name.endswith("_cpu"):
        raise AttributeError(f"sgl_kernel stand-in has no {name!r}")

    def operator(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} was called, but this engine runs the CPU profile")

    operator.__name__ = name
    return operator

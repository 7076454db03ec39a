"""In which ways a request can end in `guard_program`; importable without SGLang."""

ENDS = (
    "finish",
    "finish, late echo",
    "finish twice",
    "echo, late finish",
    "over context",
    "bad sampling",
    "400 output",
    "500 output",
    "503 output",
    "400 echo",
    "500 echo",
    "503 echo",
    "abort queued",
    "abort running",
    "gone queued",
    "gone running",
    "cancelled queued",
    "cancelled running",
)

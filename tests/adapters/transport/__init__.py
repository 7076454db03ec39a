"""The transport on loopback, with real processes."""

import os

# c10d prints a C++ stack for every connection that ends, and connections end here all the time.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

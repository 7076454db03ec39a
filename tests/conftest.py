"""Hypothesis profiles, and which tests stay together when several workers run them.

`dev` is quick, `ci` is deep and repeatable (CI=true, or HYPOTHESIS_PROFILE=ci).
"""

import os

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW)
settings.register_profile(
    "ci",
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all tests on real engines, which share two of them; tests of a file share what it computed."""
    for item in items:
        engines = item.get_closest_marker("engines") is not None
        item.add_marker(pytest.mark.xdist_group("engines" if engines else item.path.stem))

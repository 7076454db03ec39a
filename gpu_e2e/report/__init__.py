"""The report of an experiment: its JSON schema, its HTML page, and writing both."""

from gpu_e2e.report.html import render
from gpu_e2e.report.schema import SCHEMA
from gpu_e2e.report.write import write

__all__ = ["SCHEMA", "render", "write"]

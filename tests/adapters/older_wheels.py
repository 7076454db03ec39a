"""Imported before an SGLang that is older than the installed transformers: it registers names known there already."""

from transformers.models.auto import configuration_auto

_register = configuration_auto._LazyConfigMapping.register
configuration_auto._LazyConfigMapping.register = lambda self, key, value, exist_ok=False: _register(
    self, key, value, exist_ok=True
)

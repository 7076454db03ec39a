"""An SGLang server whose guard comes by `launch_server(init_tokenizer_manager_func=...)`; a module to run."""

from __future__ import annotations

import sys


def main() -> None:
    """As `sglang.launch_server`, without its own ways of serving."""
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.server_args import prepare_server_args

    from lorafsm_sglang.guard.plugin import TARGET, init_guarded_tokenizer_manager

    load_plugins()
    if HookRegistry._hooks.get(TARGET):
        sys.exit("the plugin brought the guard: this server is to show that the function does")
    server_args = prepare_server_args(sys.argv[1:])
    server_args.resolve_once()
    launch_server(server_args, init_tokenizer_manager_func=init_guarded_tokenizer_manager)


if __name__ == "__main__":
    main()

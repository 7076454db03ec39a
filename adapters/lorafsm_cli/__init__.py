"""The command line: `lorafsm demo`, `status`, `diagram`, `explore`; with `--json` for machines."""

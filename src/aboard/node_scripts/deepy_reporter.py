"""Runs deepy.py in its own Python, with DeepSpeed's launcher replaced: `FD deepy.py ARGUMENTS…`.

It writes the launcher's arguments to FD, and the variables that deepy.py set for it: WANDB_API_KEY, with a value from
~/.netrc.
"""

import importlib
import json
import os
import runpy
import sys


def report_command(out: int, argv: "list[str]") -> None:
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runner = importlib.import_module("deepspeed.launcher.runner")
    before = dict(os.environ)

    def report(args: "list[str] | None" = None) -> None:
        exported = {name: value for name, value in os.environ.items() if name.startswith(tuple(runner.EXPORT_ENVS))}
        env = {name: value for name, value in exported.items() if before.get(name) != value}
        with os.fdopen(out, "w") as file:
            json.dump({"arguments": sys.argv[1:] if args is None else args, "env": env}, file)
        sys.exit()

    vars(runner)["main"] = report
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    report_command(int(sys.argv[1]), sys.argv[2:])

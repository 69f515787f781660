"""A stand-in for gpt-neox's deepy.py: it builds a deepspeed command from YAML files, and calls DeepSpeed's launcher."""

import base64
import json
import sys
from pathlib import Path

import deepspeed.launcher.runner
import yaml

# The keys that DeepSpeed itself reads.
DEEPSPEED_KEYS = ("optimizer", "zero_optimization", "fp16", "train_micro_batch_size_per_gpu", "gradient_clipping")


def main():
    script, *paths = sys.argv[1:]
    settings = {}
    for path in paths:
        for key, value in yaml.safe_load(Path(path).read_text()).items():
            if key in settings:
                sys.exit(f"{path} has the key {key}, which a file before it has, too")
            settings[key] = value
    hostfile = settings.get("hostfile", deepspeed.launcher.runner.DLTS_HOSTFILE)
    slots = deepspeed.launcher.runner.fetch_hostfile(hostfile) or {"localhost": 1}
    config = {key: settings[key] for key in DEEPSPEED_KEYS}
    config["train_batch_size"] = sum(slots.values()) * config["train_micro_batch_size_per_gpu"]
    arguments = ["--hostfile", hostfile] if "hostfile" in settings else []
    arguments += [script, "--deepspeed_config", encode(config), "--megatron_config", encode(settings)]
    print(f"deepy.py: world size {sum(slots.values())}", flush=True)
    deepspeed.launcher.runner.main(arguments)


def encode(config):
    return base64.urlsafe_b64encode(json.dumps(config).encode()).decode()


if __name__ == "__main__":
    main()

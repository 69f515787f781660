"""Front ends that start a launcher themselves, with their real packages: each in an environment of its own."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Launches, build_sandbox

pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("torch_b")]

# What each needs for its launcher, beside what this environment has. llamafactory's training imports torchaudio, of
# which there is no build without CUDA: an empty module stands in, since text has no sound.
LLAMAFACTORY = [
    *("llamafactory==0.9.5", "transformers==5.6.0", "tokenizers==0.22.2", "trl==0.24.0", "datasets==4.0.0"),
    *(
        "accelerate==1.11.0",
        "peft==0.18.1",
        "huggingface-hub==1.5.0",
        "fsspec==2025.3.0",
        "torchdata==0.11.0",
        "tyro==0.8.14",
        "omegaconf",
    ),
    *("antlr4-python3-runtime==4.9.3", "fire", "termcolor", "matplotlib", "contourpy", "cycler", "fonttools"),
    *("kiwisolver", "pyparsing", "docstring_parser", "shtab", "typeguard", "modelscope", "sentencepiece", "tiktoken"),
]
OTHERS = ["axolotl==0.19.0", "colorama", "ms-swift==4.6.0", "modelscope", "modelscope-hub"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune"
SETTINGS = """model_name_or_path: model
stage: sft
do_train: true
finetuning_type: full
dataset: mini
dataset_dir: data
template: default
cutoff_len: 64
output_dir: out
per_device_train_batch_size: 2
max_steps: 4
logging_steps: 1
learning_rate: 1.0e-3
save_strategy: "no"
report_to: none
use_cpu: true
"""


@pytest.fixture(scope="module")
def make_environment() -> Callable[[str, list[str]], Path]:
    """Makes an environment with these packages in front of those of this one, where the hosts see it."""

    def make(name: str, packages: list[str]) -> Path:
        folder = Path(sys.prefix) / "front-ends" / name
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            (site,) = folder.glob("lib/python3.*/site-packages")
            (base,) = Path(sys.prefix).glob("lib/python3.*/site-packages")
            (site / "base.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n")
            install = ["-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--no-deps", *packages]
            subprocess.run([str(python), *install], check=True)
            (folder / "complete").touch()
        return python

    return make


def test_llamafactory_trains_on_two_nodes(make_environment: Callable[[str, list[str]], Path]) -> None:
    """`llamafactory-cli train` without any variable: its launcher's ranks train one model, whose losses fall."""
    python = make_environment("llamafactory", LLAMAFACTORY)
    rows = [{"instruction": f"say {number}", "input": "x", "output": f"it is {number}"} for number in range(64)]
    with build_sandbox("llamafactory", nodes=2, slots=1) as box:
        launches = Launches(box, folder="/shared/sft")
        launches.put("aboard.yaml", f"cluster:\n  python: {python}\n  nodes: ['n[1-2] slots=1']\n")
        box.head.run(["mkdir", "-p", "/shared/sft/data", "/shared/sft/stubs"]).check_returncode()
        launches.put("sft.yaml", SETTINGS)
        launches.put("data/mini.json", json.dumps(rows))
        launches.put("data/dataset_info.json", json.dumps({"mini": {"file_name": "mini.json"}}))
        launches.put("stubs/torchaudio.py", "")
        launches.put("train.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
        launches.put("make_model.py", (EXAMPLE / "make_model.py").read_text())
        box.head.run([str(python), "make_model.py"], cwd="/shared/sft", timeout=300).check_returncode()
        env = ("PYTHONPATH=/shared/sft/stubs", "DISABLE_VERSION_CHECK=1")
        ran = launches.launch("--", "llamafactory-cli", "train", "sft.yaml", env=env, timeout=400)
        assert ran.code == 0, ran.said
        assert "captured torchrun on n[1-2]" in ran.said
        assert "done: finished: 2 ranks" in ran.said
        losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", ran.said)]
        assert len(losses) == 4
        assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("command", "launcher", "started"),
    [
        ("axolotl train x.yml", "accelerate", "-m axolotl.cli.train x.yml"),
        ("swift sft --model m --dataset d.jsonl", "torchrun", "swift/cli/sft.py --model m --dataset d.jsonl"),
    ],
)
def test_the_launcher_of_a_front_end(
    make_environment: Callable[[str, list[str]], Path], command: str, launcher: str, started: str
) -> None:
    """On all nodes, with one rank per slot. Their training can't be imported without CUDA: not tested."""
    python = make_environment("others", OTHERS)
    with build_sandbox("front", nodes=2, slots=2) as box:
        launches = Launches(box, slots=2)
        launches.put("aboard.yaml", f"cluster:\n  python: {python}\n  nodes: ['n[1-2] slots=2']\n")
        launches.put("x.yml", "base_model: m\ndatasets: [{path: d.jsonl, type: alpaca}]\nmicro_batch_size: 1\n")
        shown = launches.aboard("launch", "--dry-run", "--capture", "--", *command.split(), timeout=300)
        assert f"captured {launcher} on n[1-2]" in shown.stderr, shown.stderr
        assert "4 ranks on 2 nodes" in shown.stdout
        assert started in shown.stdout

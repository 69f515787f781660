"""The largest shape that fits, for a few steps in each variant: speed, memory beside the estimate, waits, kernels."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from aboard.core.plan.training_settings import Training
from aboard.diagnoses.untrusted import Untrusted
from first_gpu_day.day_run import DayRun, Figure, Outcome, State
from first_gpu_day.gpu_day import GpuDay, format_logs, read_number
from first_gpu_day.training_runs import explain_failure, new_directory, run_training

_TITAN_SPEED = re.compile(r"\btps: ?([0-9,]{1,12})")
_RESERVED = 0.94
Settings = Mapping[str, Any]
_PACKAGES = {"flash_attention_2": "flash_attn", "flex_attention": "triton"}


def choose_shape(day: GpuDay) -> Outcome:
    """The largest shape whose estimate fits into the smallest GPU, with its model and rows."""
    room = _find_room(day)
    if room is None:
        return Outcome(state="failed", seen="no node reported the memory of its GPUs (see machines)")
    figures: dict[str, Figure] = {"memory of the smallest GPU, GiB": round(room / 2**30, 1)}
    chosen = ""
    for shape in day.sizes.shapes:
        _write_model(day, shape)
        needs = _estimate(day, shape, {})
        if isinstance(needs, str):
            return Outcome(state="failed", seen=f"no estimate of {shape}: {needs}", figures=figures)
        figures[f"{shape}: estimate, GiB"] = round(needs["total"] / 2**30, 3)
        if needs["total"] < _RESERVED * room and not chosen:
            chosen = shape
    if not chosen:
        return Outcome(state="not run", seen="no shape fits by the estimate", figures=figures)
    figures["shape"] = chosen
    _write_rows(day)
    # For the bare loop: `aboard train` sends its model by itself.
    sent = day.aboard("shape", "sync", "--on", day.write_config("shape"), str(day.folder / "models"), minutes=2)
    if sent.code != 0:
        return Outcome(state="failed", seen=f"the model can't be copied to the nodes: {sent.last}", figures=figures)
    seen = f"{chosen} with {day.sizes.tokens} tokens per GPU: the largest that the estimate says fits"
    return Outcome(state="as expected", seen=seen, figures=figures)


def run_bare_loop(day: GpuDay, name: str, words: Sequence[str] = ()) -> Outcome:
    if lacking := _find_lack(day, "triton" if "compile" in words else ""):
        return lacking
    steps, tokens = day.sizes.steps, day.sizes.tokens
    done = day.launch(name, "bare_fsdp.py", str(_model(day)), str(tokens), str(steps), *words, minutes=6)
    lines = day.read_logs(name)
    texts = {"output": format_logs(lines), "aboard": done.output}
    reports = day.read_reports(name)
    rates = [rate for each in reports if (rate := read_number(each.get("tokens_per_second"))) is not None]
    reserved = [size for each in reports if (size := read_number(each.get("reserved"))) is not None]
    if done.code != 0 or not rates:
        return explain_failure(day, name, done, texts)
    figures: dict[str, Figure] = {"tokens/s": round(rates[0])}
    if reserved:
        figures["reserved, GiB"] = round(reserved[0] / 2**30, 2)
    return Outcome(state="as expected", seen=f"{rates[0]:.0f} tokens/s", figures=figures, texts=texts)


def run_torchtitan(day: GpuDay) -> Outcome:
    """The entry point of torchtitan itself on the same number of tokens, from a checkout of it."""
    shape = str(day.results["shape"].figures["shape"])
    if not day.torchtitan:
        return Outcome(state="not run", seen="no checkout of torchtitan was given (--torchtitan DIR)")
    if shape != "8B":
        return Outcome(state="not run", seen=f"torchtitan has no Llama of {shape}, which is what fits here")
    # Its tokenizer and rows for tests are in the checkout: nothing is downloaded.
    given = {
        "module": "llama3",
        "config": "llama3_8b",
        "hf_assets_path": "./tests/assets/tokenizer",
        "dataloader.dataset": "c4_test",
        "training.seq_len": day.sizes.tokens,
        "training.local_batch_size": 1,
        "training.steps": day.sizes.steps,
        "activation_checkpoint.mode": "full",
        "metrics.log_freq": 1,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    options = ("--env", f"PYTHONPATH={day.torchtitan}", "--set", f"cluster.workdir={day.torchtitan}", "--module")
    done = day.launch("torchtitan", "torchtitan.train", *words, options=options, minutes=8)
    lines = day.read_logs("torchtitan")
    texts = {"output": format_logs(lines), "aboard": done.output}
    found = [float(each[1].replace(",", "")) for line in lines if (each := _TITAN_SPEED.search(line["text"]))]
    if done.code != 0 or not found:
        return explain_failure(day, "torchtitan", done, texts)
    rate = found[-1] * day.world
    figures: dict[str, Figure] = {"tokens/s": round(rate)}
    return Outcome(
        state="as expected", seen=f"{rate:.0f} tokens/s, as its last line has it", figures=figures, texts=texts
    )


def train_shape(
    day: GpuDay, name: str, rows: str, settings: Settings, wish: Mapping[str, Any] | None = None
) -> Outcome:
    """`aboard train` of the shape; ranks end after the last step, without a checkpoint."""
    needed = "triton" if settings.get("torch_compile") else _PACKAGES.get(settings.get("attn_implementation", ""), "")
    if lacking := _find_lack(day, needed):
        return lacking
    steps = day.sizes.steps
    given = {
        **_settings(_model(day), new_directory(day, name)),
        "max_steps": 10 * steps,
        "logging_steps": steps // 4,
        **settings,
    }
    data = {"files": str(day.folder / f"{rows}.jsonl"), "max_length": day.sizes.tokens, "loss_on": "all"}
    options = ["--restarts", "0"]
    done = run_training(day, name, data, given, options=options, wish={"stop": steps + 1, **(wish or {})}, minutes=8)
    logs = day.read_logs(name)
    texts = {"output": format_logs(logs), "aboard": done.output}
    reports = day.read_reports(name)
    lines = [line for line in day.read_metrics(name) if read_number(line.get("tokens_per_second")) is not None]
    # The first half of the steps warms up.
    warm = [line for line in lines if (read_number(line["step"]) or 0) > steps // 2]
    if done.code != 0 or not warm:
        return explain_failure(day, name, done, texts)
    rates = sorted(read_number(line["tokens_per_second"]) or 0.0 for line in warm)
    figures: dict[str, Figure] = {"tokens/s": round(rates[len(rates) // 2])}
    if (mfu := read_number(warm[-1].get("mfu"))) is not None:
        figures["MFU"] = round(mfu, 4)
    seen = f"{figures['tokens/s']} tokens/s"
    if bare := day.figure("bare", "tokens/s"):
        figures["speed / bare loop's"] = ratio = round(rates[len(rates) // 2] / bare, 3)
        seen += f", {ratio} × the bare loop's"
    needs = _estimate(day, str(day.results["shape"].figures["shape"]), settings)
    state: State = "as expected"
    if not isinstance(needs, str):
        memory = _compare_memory(reports, needs)
        figures |= memory
        if isinstance(taken := memory.get("tensors / estimated"), float):
            seen += f"; tensors take {taken:.2f} × the estimate"
            state = "as expected" if day.sizes.near[0] <= taken <= day.sizes.near[1] else "differs"
    texts |= _collect_kernels(reports)
    return Outcome(state=state, seen=seen, figures=figures, texts=texts)


def watch_waits(day: GpuDay) -> Outcome:
    """Steps between two log lines in which any wait of the host for the GPU raises an error."""
    steps = day.sizes.steps
    wish = {"waits": [2, steps - 1]}
    outcome = train_shape(day, "waits", "packed", {"logging_steps": steps}, wish)
    told = [each["waits"] for each in day.read_reports("waits") if isinstance(each.get("waits"), str)]
    if outcome.state in ("failed", "not run"):
        return outcome
    if told.count("error") < day.world:
        why = next((each for each in told if each not in ("error", "default")), "the hook did not run")
        seen = f"torch.cuda.set_sync_debug_mode: {Untrusted(why).visible(160)}"
        return Outcome(state="not run", seen=seen, texts=outcome.texts)
    seen = f"steps 3 to {steps - 1} without a wait on {day.world} ranks"
    return Outcome(state="as expected", seen=seen, figures=outcome.figures, texts=outcome.texts)


def _compare_memory(reports: Sequence[Mapping[str, Any]], needs: Mapping[str, float]) -> dict[str, Figure]:
    """What rank 0 measured in its GPU, beside the estimate; `used` has what is outside of torch, too."""
    figures: dict[str, Figure] = {f"estimate of {name}, GiB": round(size / 2**30, 4) for name, size in needs.items()}
    for each in reports:
        for name in ("allocated", "reserved", "used"):
            if (size := read_number(each.get(name))) is not None:
                figures[f"{name}, GiB"] = round(size / 2**30, 4)
                if name == "allocated":
                    figures["tensors / estimated"] = round(size / needs["peak"], 3)
                elif name == "used":
                    figures["used / estimated"] = round(size / needs["total"], 3)
    return figures


def _find_lack(day: GpuDay, package: str) -> Outcome | None:
    """Why a run can't be: a node without this package, as it described itself."""
    packages = [str(day.results["machines"].figures.get(f"{node} packages", "")) for node in day.nodes]
    if not package or all(f"{package} " in each for each in packages):
        return None
    return Outcome(state="not run", seen=f"the package {package} is not installed on every node")


def _collect_kernels(reports: list[dict[str, Any]]) -> dict[str, str]:
    lines = [each["line"] for each in reports if each.get("text") == "kernels" and isinstance(each.get("line"), str)]
    places = [
        f"the trace is {each['trace']} on {each['node']}" for each in reports if isinstance(each.get("trace"), str)
    ]
    return {"kernels": "\n".join([*lines, *places])} if lines or places else {}


def _find_room(day: GpuDay) -> int | None:
    """Bytes of the smallest GPU of all nodes."""
    reports = day.read_reports("machines")
    words = [word for each in reports if isinstance(each.get("memory"), list) for word in each["memory"]]
    known = [word for word in words if isinstance(word, str) and re.fullmatch("[0-9]{1,9}", word)]
    return min((int(word) << 20 for word in known), default=None)


def _settings(model: Path, output: Path) -> dict[str, Any]:
    return {
        "model": str(model),
        "from_scratch": True,
        "output_dir": str(output),
        "per_device_train_batch_size": 1,
        "learning_rate": 1e-5,
        "gradient_checkpointing": True,
        "sharding": "full",
        "device": "cuda",
        "bf16": True,
    }


def _estimate(day: GpuDay, shape: str, settings: Settings) -> Mapping[str, float] | str:
    """The trainer's own estimate of a rank's bytes: all of them, and the peak of tensors; or why there is none."""
    known = {
        "bf16",
        "torch_compile",
        "attn_implementation",
        "chunked_loss",
        "gradient_checkpointing",
        "sharding",
        "cpu_offload",
    }
    training = _settings(_model(day, shape), day.folder / "trained") | {
        key: settings[key] for key in known.intersection(settings)
    }
    declared = asdict(Training(**training, max_length=day.sizes.tokens, data=()))
    request = json.dumps(
        {"training": declared, "ranks": dict.fromkeys(day.nodes, day.slots), "memory": None, "gpus": True}
    )
    if request in day.estimates:
        return day.estimates[request]
    done = subprocess.run(
        [sys.executable, "-m", "aboard.trainer.memory.worker"],
        input=request,
        capture_output=True,
        text=True,
        timeout=300 * day.sizes.patience,
        check=False,
    )
    try:
        needs = json.loads(done.stdout.strip().rpartition("\n")[2])["needs"]
        day.estimates[request] = {name: float(needs[name]) for name in ("total", "peak")}
    except (ValueError, KeyError, TypeError):
        words = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        return Untrusted(words or f"exit code {done.returncode}").visible(200)
    return day.estimates[request]


def _model(day: GpuDay, shape: str = "") -> Path:
    return day.folder / "models" / (shape or str(day.results["shape"].figures["shape"]))


def _write_model(day: GpuDay, shape: str) -> None:
    """A Llama's config.json and a tokenizer; no weights."""
    hidden, layers, heads, groups, intermediate, vocabulary = day.sizes.shapes[shape]
    folder = _model(day, shape)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": day.sizes.tokens,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, 1000)}}
    special = [
        {
            "id": number,
            "content": word,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for word, number in [*words.items()][:3]
    ]
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<pad>"}
    tokenizer = {"version": "1.0", "added_tokens": special, "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    kinds = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(kinds), "utf-8")


def _write_rows(day: GpuDay) -> None:
    """Random tokens: rows of the whole length, and documents of a sixteenth to a half of it to be packed."""
    draw = random.Random(7)  # noqa: S311 - reproducible, not a secret
    tokens, wanted = day.sizes.tokens, (day.sizes.steps + 4) * day.world * day.sizes.tokens
    for name, low, high in (("whole", tokens, tokens), ("packed", max(4, tokens // 16), tokens // 2)):
        written = 0
        with (day.folder / f"{name}.jsonl").open("w") as file:
            while written < wanted:
                length = draw.randint(low, high)
                file.write(json.dumps({"input_ids": [draw.randrange(4, 900) for _ in range(length)]}) + "\n")
                written += length


def _declare(
    name: str,
    proves: str,
    *,
    rows: str = "packed",
    settings: Settings | None = None,
    wish: Mapping[str, Any] | None = None,
    minutes: float = 4,
    drop: int = 2,
) -> DayRun:
    perform = partial(train_shape, name=name, rows=rows, settings=settings or {}, wish=wish)
    return DayRun(name=name, minutes=minutes, drop=drop, proves=proves, perform=perform, needs=("shape",))


SPEED_RUNS = (
    DayRun(
        name="shape",
        minutes=2,
        drop=0,
        proves="the largest of the shapes that the estimate says fits",
        perform=choose_shape,
        needs=("machines",),
    ),
    DayRun(
        name="waits",
        minutes=4,
        drop=0,
        proves="no wait of the host for the GPU between two log lines",
        perform=watch_waits,
        needs=("shape",),
    ),
    DayRun(
        name="bare",
        minutes=4,
        drop=1,
        proves="the speed of a bare FSDP2 loop, for comparison",
        perform=partial(run_bare_loop, name="bare"),
        needs=("shape",),
    ),
    _declare("whole-rows", "speed and memory of aboard train, rows of the whole length", rows="whole", drop=1),
    _declare("packed", "speed and memory of aboard train on packed rows, attention as it chooses", drop=1),
    DayRun(
        name="torchtitan",
        minutes=6,
        drop=3,
        proves="the speed of torchtitan on the same tokens",
        perform=run_torchtitan,
        needs=("shape",),
    ),
    _declare("attention-sdpa", "packed rows with sdpa", settings={"attn_implementation": "sdpa"}, drop=3),
    _declare(
        "attention-flash", "packed rows with flash-attn", settings={"attn_implementation": "flash_attention_2"}, drop=2
    ),
    _declare(
        "attention-flex", "packed rows with flex attention", settings={"attn_implementation": "flex_attention"}, drop=4
    ),
    _declare(
        "compiled", "speed with torch_compile, which has never run on GPUs", settings={"torch_compile": True}, minutes=7
    ),
    _declare(
        "replicated", "whole models under autocast beside shards, if they fit", settings={"sharding": "none"}, drop=4
    ),
    _declare(
        "reduce-bf16", "gradients sent in bfloat16: speed and losses", settings={"reduce_dtype": "bfloat16"}, drop=4
    ),
    _declare("prefetch-2", "two layers gathered ahead", settings={"prefetch_layers": 2}, drop=4),
    _declare("float32", "float32, for comparison", settings={"bf16": False}, drop=5),
    _declare("tf32", "float32 with products in TF32: speed and losses", settings={"bf16": False, "tf32": True}, drop=5),
    DayRun(
        name="bare-compiled",
        minutes=7,
        drop=4,
        proves="the speed of the compiled bare loop",
        perform=partial(run_bare_loop, name="bare-compiled", words=("compile",)),
        needs=("shape",),
    ),
    _declare("chunked-loss", "speed and memory of chunked_loss", settings={"chunked_loss": True}, drop=4),
    _declare(
        "selective", "speed and memory of selective checkpointing", settings={"gradient_checkpointing": "selective"}
    ),
    _declare("hybrid", "speed and memory with shards within each node only", settings={"sharding": "hybrid"}),
    _declare("profile", "where the time of a step goes on the GPU", wish={"trace": [3, 5]}, drop=3),
)

"""accelerate's flags and config files: the environment that they become, against the real launcher's."""

from pathlib import Path

import pytest
from launcher_texts import TextFiles, pasted

from aboard.config.accelerate_config import HeadFiles, parse_accelerate_config
from aboard.diagnoses import InputError

GOLDEN = Path(__file__).parents[3] / "golden" / "paste"
CONFIGS = {path.name: path.read_text("utf-8") for path in (GOLDEN / "env").glob("*.yaml")}
# The plan sets these: threads from the cores, the master from the check, the devices from the slots.
PLANNED = {"OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"}
FSDP = CONFIGS["fsdp1.yaml"]


@pytest.mark.parametrize("case", sorted((GOLDEN / "env").glob("*.txt")), ids=lambda path: path.stem)
def test_the_environment_is_the_one_that_accelerate_sets(case: Path) -> None:
    """Name by name and value by value what accelerate's own code computed for the same command."""
    command, *lines = case.read_text("utf-8").splitlines()
    real = dict(line.partition("=")[::2] for line in lines)
    got = {**pasted(command.removeprefix("$ "), files=CONFIGS).env}
    if "PYTHONPATH" in got:
        got["PYTHONPATH"] = got["PYTHONPATH"].replace("/home/me/project", "HERE")
    assert got == {name: value for name, value in real.items() if name not in PLANNED}


def test_a_rank_gets_what_accelerate_gives_it() -> None:
    """Of what a rank of `accelerate launch --use_fsdp` was seen to have, torchrun's and ours make the whole."""
    seen, torch = (
        set((GOLDEN / "set_by" / name).read_text("utf-8").splitlines()[1:])
        for name in ("accelerate-fsdp.txt", "torchrun.txt")
    )
    assert seen - torch == pasted("accelerate launch --use_fsdp --num_processes 2 x.py").env.keys()


def test_processes_are_those_of_all_machines() -> None:
    """num_processes is the total, so each node starts its share."""
    got = pasted("accelerate launch --config_file f train.py", files={"f": FSDP})
    assert (got.nodes, got.ranks) == (2, 8)


def test_an_uneven_share_is_refused() -> None:
    """Where accelerate would round down and start fewer ranks than asked for, nothing is started."""
    with pytest.raises(InputError, match=r"10 processes can't be divided evenly among 4 machines") as error:
        pasted("accelerate launch --num_processes 10 --num_machines 4 train.py")
    assert "one rank per slot" in error.value.fix


def test_filters_say_how_many() -> None:
    """With DeepSpeed's filter the slots that it names are the ranks, as accelerate leaves --num_gpus out then."""
    command = "accelerate launch --config_file deepspeed.yaml --deepspeed_inclusion_filter w0:0@w1 train.py"
    got = pasted(command, files=CONFIGS)
    assert (got.hostfile, got.include, got.ranks) == ("configs/hostfile", "w0:0@w1", None)


def test_the_default_config_counts_when_none_is_named() -> None:
    """What `accelerate config` wrote is read as accelerate does, at HF_HOME too, but not with --cpu."""
    home = "~/.cache/huggingface/accelerate/default_config.yaml"
    assert pasted("accelerate launch train.py", files={home: FSDP}).nodes == 2
    assert pasted("accelerate launch --cpu train.py", files={home: FSDP}).nodes is None
    moved = {"/hf/accelerate/default_config.yaml": FSDP}
    assert pasted("accelerate launch train.py", files=moved, environ={"HF_HOME": "/hf"}).nodes == 2


def test_a_flag_wins_over_the_file() -> None:
    """The file is for what the flags don't say."""
    got = pasted("accelerate launch --config_file f --num-processes 4 --main_process_port 7 x.py", files={"f": FSDP})
    assert (got.ranks, got.request.master_address, got.request.master_port) == (2, "10.0.0.1", 7)


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        ("--use_fsdp --multi_gpu", "--multi_gpu and --use_fsdp can't be used together"),
        ("--tpu", "does not support TPUs"),
        ("--gpu_ids GPU-8f3a", "not a list of slot numbers"),
        ("--use_deepspeed --deepspeed_multinode_launcher slurm", "can't use a different launcher"),
        ("--mpirun_hostfile h", "doesn't use mpirun"),
        ("--mixed_precision bf17", "mixed_precision can't be 'bf17'"),
        ("--num_procs 2", "not a flag for accelerate launch"),
        ("--num_process 2", "not a flag for accelerate launch"),
    ],
)
def test_refused(flags: str, seen: str) -> None:
    """What can't be obeyed is refused by name; accelerate takes no shortened flags, and neither do we."""
    with pytest.raises(InputError, match=seen) as error:
        pasted(f"accelerate launch {flags} train.py")
    assert error.value.fix


def test_another_launcher_of_the_file_is_ignored_with_a_note() -> None:
    """Nobody typed that flag; `accelerate config` writes it, and Aboard starts the ranks anyway."""
    text = "distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 4\n"
    file = f"{text}deepspeed_config: {{deepspeed_multinode_launcher: slurm}}\n"
    got = pasted("accelerate launch --config_file f x.py", files={"f": file})
    assert got.nodes == 2
    assert [note for note in got.notes if "deepspeed_multinode_launcher, slurm, is not used" in note]


def test_mistakes_in_the_file_have_lines() -> None:
    """Every key that accelerate wouldn't know, and every value of the wrong kind, is shown at its place."""
    text = "distributed_type: FSDP\nnum_procesess: 4\nfsdp_config: yes\nnum_machines: two\n"
    with pytest.raises(InputError) as error:
        parse_accelerate_config(text, file="acc.yaml")
    assert [str(problem) for problem in error.value.problems] == [
        "acc.yaml:2:1: accelerate has no key 'num_procesess'",
        "acc.yaml:3:1: fsdp_config must be a section with keys below it",
        "acc.yaml:4:15: num_machines must be a whole number",
    ]
    assert error.value.problems[0].fix == "did you mean 'num_processes'?"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("num_machines: 2\n", "distributed_type is missing"),
        ("distributed_type: XLA\n", "for TPUs"),
        ("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n", "AMAZON_SAGEMAKER is not supported"),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sync_module_states: false}\n", "needs fsdp_sync_module_states"),
    ],
)
def test_files_that_cannot_be_obeyed(text: str, seen: str) -> None:
    """A file for machines that Aboard doesn't reach, or one that accelerate refuses, is refused with the reason."""
    with pytest.raises(InputError, match=seen):
        pasted("accelerate launch --config_file f train.py", files={"f": text})


def test_numbers_as_people_write_them() -> None:
    """1e8 is a whole number to accelerate's int(), which the text of YAML 1.1 was not."""
    text = "distributed_type: FSDP\nfsdp_config: {fsdp_min_num_params: 1e8, colour: red}\n"
    got = pasted("accelerate launch --config_file f train.py", files={"f": text})
    assert got.env["FSDP_MIN_NUM_PARAMS"] == "100000000"
    assert "f: accelerate doesn't know fsdp_colour either." in got.notes


def test_false_means_false() -> None:
    """Accelerate takes any text behind this flag for true, `false` among them."""
    got = pasted("accelerate launch --use_megatron_lm --megatron_lm_no_load_optim false train.py")
    assert got.env["MEGATRON_LM_NO_LOAD_OPTIM"] == "False"


def test_the_nvme_path_reaches_the_plugin() -> None:
    """The launcher forgets this flag, though accelerate's DeepSpeedPlugin reads the variable."""
    got = pasted("accelerate launch --use_deepspeed --offload_param_nvme_path /nvme train.py")
    assert got.env["ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"] == "/nvme"


def test_the_file_on_disk(tmp_path: Path) -> None:
    """A path from ~ or from here is read; one that isn't there is an error, where DeepSpeed would go on alone."""
    path = tmp_path / "acc.yaml"
    path.write_text(FSDP, "utf-8")
    assert HeadFiles().exists(str(path))
    assert HeadFiles().settings(str(path))["num_machines"] == 2
    assert not HeadFiles().exists("~nobody-here/x")
    assert not HeadFiles().exists("a\0b")
    with pytest.raises(InputError, match="the file does not exist"):
        HeadFiles().settings(str(tmp_path / "none.yaml"))


def test_json_is_read_too() -> None:
    """Older versions wrote JSON, which is YAML."""
    text = '{"distributed_type": "FSDP", "num_machines": 2, "num_processes": 4}'
    assert TextFiles({"f.json": text}).settings("f.json")["num_processes"] == 4

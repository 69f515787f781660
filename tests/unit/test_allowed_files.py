"""What in a file names code, and that nothing in the schema is forgotten."""

import pytest

from aboard.config.allowed_files import compute_digest
from aboard.config.code_settings import CODE_KEYS, list_code_settings, names_code
from aboard.config.schema.aboard_yaml import ClusterSection, ContainerSection, NodeSection
from aboard.config.schema.base_section import Section
from aboard.config.schema.slurm_section import SlurmSection
from aboard.config.yaml_tree import parse_tree

HARMLESS = {
    "cluster": "nodes hostfile slurm slots user port workdir fabric_address env",
    "cluster.nodes": "name address slots user port workdir fabric_address env",
    "cluster.slurm": "nodes partition gpus_per_node account time qos constraint exclude resubmit",
}
SECTIONS: dict[str, type[Section]] = {
    "cluster": ClusterSection,
    "cluster.nodes": NodeSection,
    "cluster.slurm": SlurmSection,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_the_cluster_is_harmless_or_needs_consent(section: str) -> None:
    """A new key needs a decision: add it to CODE_KEYS, or to the harmless ones here."""
    assert set(SECTIONS[section].model_fields) == {*HARMLESS[section].split(), *CODE_KEYS[section]}


def test_everything_in_a_container_needs_consent() -> None:
    """Its image, binds, options and variables: the whole section is one setting."""
    tree = parse_tree("cluster: {container: {runtime: docker, image: x, binds: [/:/host]}}", file="a.yaml")
    (setting,) = list_code_settings(tree)
    assert (setting.key, setting.value["binds"], setting.where) == ("cluster.container", ["/:/host"], "a.yaml:1:22")
    assert "binds" in ContainerSection.model_fields


def test_resources_of_a_job_need_no_consent() -> None:
    """Whole nodes and their memory are no code; an option that isn't known to be harmless is asked for."""
    head = "cluster: {slurm: {nodes: 2, extra: "
    for extra, wanted in (
        ("[--exclusive, --mem=0]", []),
        ("--gres=gpu:a100:8", []),
        ("[--mem=0, --export=A]", ["extra"]),
    ):
        settings = list_code_settings(parse_tree(f"{head}{extra}}}}}", file="a.yaml"))
        assert [each.key.rpartition(".")[2] for each in settings] == wanted


LOADING = """
LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONWARNINGS PATH BASH_ENV ENV GCONV_PATH
NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_CONF_FILE CUDA_INJECTION64_PATH CUDA_HOME
TORCH_EXTENSIONS_DIR TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TRITON_PTXAS_PATH GIT_SSH_COMMAND GIT_CONFIG_GLOBAL
SSH_ASKPASS EDITOR PAGER CC CXX HOME HF_HOME HF_ENDPOINT HF_MODULES_CACHE https_proxy OMPI_MCA_plm_rsh_agent
UCX_MODULE_DIR FI_PROVIDER_PATH OPENSSL_CONF PERL5OPT NODE_OPTIONS JAVA_TOOL_OPTIONS MPLBACKEND SLURM_TASK_PROLOG
APPTAINER_BIND PIP_INDEX_URL HSA_TOOLS_LIB GLIBC_TUNABLES BASH_FUNC_ls%% PS4 PROMPT_COMMAND WANDB_BASE_URL
SSL_CERT_FILE IBV_DRIVERS ABOARD_RUN MLFLOW_TRACKING_URI OMP_TOOL_LIBRARIES INTEL_LIBITTNOTIFY64
MATPLOTLIBRC KUBECONFIG NETRC
HF_DATASETS_TRUST_REMOTE_CODE TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD AWS_ENDPOINT_URL AWS_SHARED_CREDENTIALS_FILE
"""
PLAIN = """
NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_ALGO NCCL_TIMEOUT GLOO_SOCKET_IFNAME OMP_NUM_THREADS
CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_DISTRIBUTED_DEBUG TORCH_CPP_LOG_LEVEL
TOKENIZERS_PARALLELISM PYTORCH_CUDA_ALLOC_CONF HF_TOKEN HF_HUB_OFFLINE WANDB_API_KEY WANDB_MODE PYTHONUNBUFFERED
PYTHONHASHSEED PYTHONFAULTHANDLER MASTER_PORT UCX_TLS A LANG TZ TMPDIR
"""


def test_variables_that_load_code_are_known() -> None:
    """And usual settings of a training are not taken for them."""
    assert [name for name in LOADING.split() if not names_code(name)] == []
    assert [name for name in PLAIN.split() if names_code(name)] == []


def test_only_what_names_code_is_in_the_digest() -> None:
    """Comments, other settings and positions may change; a value, a key or their order may not."""

    def digest(text: str) -> str:
        return compute_digest(list_code_settings(parse_tree(text, file="aboard.yaml")))

    first = digest("cluster: {nodes: n1, python: /a, env: {PATH: 1}}\n")
    assert first == digest("# more\ncluster: {nodes: n2, user: bob, python: /a, env: {A: b, PATH: '1'}}\ndata: {}\n")
    others = ["{python: /b, env: {PATH: 1}}", "{python: /a}", "{nodes: [{name: n1, python: /a}], env: {PATH: 1}}"]
    assert len({first, *(digest(f"cluster: {other}\n") for other in others)}) == 4

"""Container: every node can start it from the same image, and ranks inside see what the node has."""

from collections.abc import Iterator, Mapping

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node_commands import format_node_command, format_python_command, get_setup_lines
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, chain_commands, format_shell
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.nodes import unanswered_probes
from aboard.doctor.container import inside_diagnoses as container_inside, inside_rules, runtime_rules
from aboard.doctor.container.container_facts import INSIDE, OUTSIDE_SOFTWARE, RUNTIME
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses


def find_unknown_containers(facts: Facts) -> Iterator[Finding]:
    """Reports nodes whose container could not be checked."""
    for probe in (RUNTIME, INSIDE):
        fact = unanswered_probes.declare_unanswered(probe.name)
        for name, answer in facts.unknown(probe).items():
            node = facts.cluster.node(name)
            if node.container is None:
                continue
            version = format_shell("{runtime} --version", runtime=node.container.runtime)
            line = (
                format_node_command(node, chain_commands(*get_setup_lines(node), version))
                if probe is RUNTIME
                else format_python_command(node, format_shell("--version"))
            )
            yield fact.finding(
                nodes=(name,), seen=f"could not check {probe.name}: {answer.why}", fix=fact.fix(line=line)
            )


def list_untested_nodes(facts: Facts) -> Mapping[str, str]:
    """The nodes whose ranks run outside of a container."""
    return {node.name: "no container" for node in facts.cluster if node.container is None}


def applies_to(cluster: Cluster) -> bool:
    """Whether ranks of any node run in a container."""
    return any(node.container is not None for node in cluster)


SUBJECT = Subject(
    name="container",
    title="containers start from the same image everywhere, and ranks inside see what the nodes have",
    probes=(RUNTIME, INSIDE, OUTSIDE_SOFTWARE),
    rules=(
        runtime_rules.find_missing_runtime,
        runtime_rules.find_unusable_runtime,
        runtime_rules.find_missing_image,
        runtime_rules.find_differing_images,
        inside_rules.find_failed_starts,
        inside_rules.find_missing_workdir,
        inside_rules.find_hidden_gpus,
        inside_rules.find_hidden_infiniband,
        inside_rules.find_small_shm,
        inside_rules.find_lower_limits,
        inside_rules.find_single_user,
        inside_rules.find_missing_home,
        runtime_rules.find_unpacked_images,
        inside_rules.find_other_versions,
        find_unknown_containers,
    ),
    diagnoses=(*list_diagnoses(container_inside), *list_unknown_diagnoses((RUNTIME, INSIDE))),
    untested=list_untested_nodes,
    applies=applies_to,
)

"""A real Slurm on real hosts, used by crew from the head."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import wait_until
from launching import build_sandbox

from aboard.diagnoses import SandboxError
from aboard.sandbox import Host, Sandbox
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.slurm import wait_until_ready

# On one worker: what the fixture sets up is dear.
pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm")]

# Where Slurm and munge keep things on a machine; a sandbox's own are on its hosts' disks.
MACHINE = ("/etc/slurm", "/etc/munge", "/var/lib/munge", "/var/log/munge", "/var/log/slurm", "/run/munge")
SPOOL = ("/var/spool/slurmctld", "/var/spool/slurmd", "/run/slurmctld.pid", "/run/slurmd.pid", "/dev/sandbox-gpu0")
DAEMONS = {"munged", "slurmctld", "slurmd"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Four nodes with Slurm that tests share: leave every node idle."""
    with build_sandbox("slurm", nodes=4, slurm=True) as made:
        yield made


def test_srun_reaches_every_node_as_crew(cluster: Sandbox) -> None:
    """One task on each node, each as the ordinary user who typed it on the head."""
    said = ok(cluster.head, "srun", "-N4", "sh", "-c", "echo $(hostname) $(id -un)")
    assert sorted(said.splitlines()) == ["n1 crew", "n2 crew", "n3 crew", "n4 crew"]


def test_a_step_sees_its_gpus(cluster: Sandbox) -> None:
    """Slots are GPUs to Slurm: a step is told which are its own, and one too many is refused."""
    show = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert ok(cluster.head, "srun", "-N2", "--gpus-per-node=2", *show).splitlines() == ["0,1", "0,1"]
    assert ok(cluster.head, "srun", "-N1", "--gpus-per-node=1", *show) == "0"
    refused = cluster.head.run(["srun", "-N1", "--gpus-per-node=3", "true"])
    assert "Requested node configuration is not available" in refused.stderr


def test_a_task_is_bound_to_its_cores(cluster: Sandbox) -> None:
    """Slurm binds tasks to cores, as most clusters do: of two tasks each has one core, unless binding is off."""
    assert ok(cluster.head, "srun", "-N1", "-n2", "nproc").split() == ["1", "1"]
    assert ok(cluster.head, "srun", "-N1", "-n2", "--cpu-bind=none", "nproc").split() == [ok(cluster.head, "nproc")] * 2


def test_many_sruns_find_ports(cluster: Sandbox) -> None:
    """Slurm's ports last for forty sruns at once."""
    many = "for i in $(seq 40); do srun --overlap -N1 -n1 hostname & done; wait"
    done = cluster.head.run(["salloc", "-N4", "sh", "-c", many])
    assert len(done.stdout.split()) == 40, done.stderr


def test_a_job_in_debug_preempts_a_job_below_it(cluster: Sandbox) -> None:
    """The job below gets SIGTERM and 5 s of grace, then its nodes go to the one in debug."""
    script = "#!/bin/sh\ntrap 'echo told; exit' TERM\necho began\nsleep 300 & wait\n"
    options = ("-N4", "--exclusive", "-p", "preempt-cancel", "-o", "/shared/low.out")
    job = cluster.head.run(["sbatch", "--parsable", *options], input=script).stdout.strip()
    wait_until(lambda: cluster.head.run(["cat", "/shared/low.out"]).stdout == "began\n", 20)
    assert len(ok(cluster.head, "srun", "-N4", "--exclusive", "hostname").splitlines()) == 4
    assert job_state(cluster.head, job) == "PREEMPTED"
    assert "told" in ok(cluster.head, "cat", "/shared/low.out")
    wait_until(lambda: set(states(cluster).values()) == {"idle"}, 20)


def test_a_batch_job_writes_to_the_shared_directory(cluster: Sandbox) -> None:
    """What sbatch starts runs on a node, as crew, and its output is where every host sees it."""
    script = "#!/bin/sh\n#SBATCH --nodes=4 --output=/shared/job.out\nsrun hostname > /shared/hosts\nid -un\n"
    done = cluster.head.run(["sbatch", "--wait", "--parsable"], input=script)
    assert done.returncode == 0, done.stderr
    assert sorted(ok(cluster.head, "cat", "/shared/hosts").split()) == ["n1", "n2", "n3", "n4"]
    assert ok(cluster.head, "cat", "/shared/job.out") == "crew"
    wait_until(lambda: not ok(cluster.head, "squeue", "--noheader"), 10)


def test_the_head_submits_and_computes_nothing(cluster: Sandbox) -> None:
    """It has slurmctld and no slurmd; a node has slurmd alone, also the one where batch scripts start."""
    assert daemons(cluster.head) == {"munged", "slurmctld"}
    assert daemons(cluster.host("n1")) == {"munged", "slurmd"}


def test_crew_cannot_read_the_munge_key(cluster: Sandbox) -> None:
    """Who has the key can be anyone; the machine's own key isn't the sandbox's."""
    assert cluster.head.run(["cat", "/etc/munge/munge.key"]).returncode != 0
    keys = {ok(host, "sha256sum", "/etc/munge/munge.key", root=True).split()[0] for host in cluster.hosts.values()}
    assert len(keys) == 1
    assert keys.isdisjoint(hash_ for _, _, hash_ in machine_files().values())


def test_a_node_that_is_not_idle_is_named_with_its_log(cluster: Sandbox) -> None:
    """Whoever waits for Slurm in vain is told for which node, in what state, and what its slurmd said last."""
    hosts = {name: ProcessIdentity.of(host.pid) for name, host in cluster.hosts.items()}
    control(cluster, "state=drain", "reason=test")
    try:
        with pytest.raises(SandboxError) as caught:
            wait_until_ready.wait_until_idle(cluster.layout, hosts, crew_id=cluster.crew_id, timeout=0.5)
    finally:
        control(cluster, "state=resume")
    assert caught.value.code == "sandbox-slurm"
    assert "not idle: n3 is drained. The last lines of slurmd's log on n3:" in caught.value.seen
    assert ok(cluster.host("n3"), "tail", "-n1", "/var/log/slurm/slurmd.log", root=True) in caught.value.seen
    wait_until_ready.wait_until_idle(cluster.layout, hosts, crew_id=cluster.crew_id, timeout=10)


def test_power_loss_fails_the_job_and_the_node_comes_back(cluster: Sandbox) -> None:
    """A dead node is down and its job NODE_FAIL within 45 s; with power it is idle again by itself."""
    job = ok(cluster.head, "sbatch", "--parsable", "-N4", "--no-requeue", "-o", "/dev/null", "--wrap=srun sleep 300")
    wait_until(lambda: job_state(cluster.head, job) == "RUNNING", 10)
    cluster.host("n4").kill_power()
    wait_until(lambda: states(cluster)["n4"].startswith("down"), 45)
    wait_until(lambda: job_state(cluster.head, job) == "NODE_FAIL", 45)
    cluster.host("n4").power_on()
    wait_until(lambda: set(states(cluster).values()) == {"idle"}, 20)
    assert len(ok(cluster.head, "srun", "-N4", "hostname").splitlines()) == 4


def test_slurm_survives_a_power_cycle_of_its_controller(box_name: str) -> None:
    """With the head back, every node is idle by itself and jobs run."""
    # A sandbox where no job ran: one whose end slurmctld had not saved yet would count as running for ever.
    with Sandbox.up(box_name, nodes=2, slurm=True) as made:
        made.head.kill_power()
        made.head.power_on()
        wait_until(lambda: states(made) == {"n1": "idle", "n2": "idle"}, 40)
        assert sorted(ok(made.head, "srun", "-N2", "hostname").split()) == ["n1", "n2"]


def test_down_leaves_nothing_of_slurm(box_name: str) -> None:
    """No daemon is left, and the machine's own Slurm and munge files are as they were, to the byte."""
    before = machine_files()
    with Sandbox.up(box_name, nodes=2, slurm=True) as made:
        assert states(made) == {"n1": "idle", "n2": "idle"}
        found = {
            ProcessIdentity.of(pid) for host in made.hosts.values() for pid in host.pids() if name_of(pid) in DAEMONS
        }
        # A daemon's first half, which ended when the daemon went to the background, may not be reaped yet.
        ours = {process for process in found if process.alive()}
        assert len(ours) == len(["munged"] * 3 + ["slurmctld"] + ["slurmd"] * 2)
        assert machine_files() == before
    assert not [process for process in ours if process.alive()]
    assert machine_files() == before


def test_another_shape_is_told_apart(cluster: Sandbox) -> None:
    """A cluster with Slurm isn't one without."""
    with pytest.raises(SandboxError, match="with Slurm; you asked for something else"):
        Sandbox.up(cluster.name, nodes=4)
    assert Sandbox.up(cluster.name, nodes=4, slurm=True).found


def ok(host: Host, *argv: str, root: bool = False) -> str:
    done = host.run(argv, root=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def states(box: Sandbox) -> dict[str, str]:
    """By sinfo; empty while slurmctld is away."""
    return wait_until_ready.parse_node_states(box.head.run(["sinfo", "--noheader", "--Node", "--format=%N %T"]).stdout)


def job_state(head: Host, job: str) -> str:
    fields = ok(head, "scontrol", "--oneliner", "show", "job", job).split()
    return next(field.removeprefix("JobState=") for field in fields if field.startswith("JobState="))


def control(cluster: Sandbox, *words: str) -> None:
    ok(cluster.head, "scontrol", "update", "nodename=n3", *words, root=True)


def daemons(host: Host) -> set[str]:
    return {name_of(pid) for pid in host.pids()} & DAEMONS


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def machine_files() -> dict[str, tuple[int, int, str]]:
    """Mode, time of change and hash of all that Slurm and munge have on the machine itself."""
    tops = [Path(path) for path in (*MACHINE, *SPOOL)]
    paths = [path for top in tops for path in (top, *top.rglob("*")) if path.exists()]
    return {str(path): (path.stat().st_mode, path.stat().st_mtime_ns, content_hash(path)) for path in paths}


def content_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""

"""What a host of a sandbox is to those who use it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from deadlines import wait_until

from aboard.diagnoses import SandboxError
from aboard.sandbox import Host, Sandbox
from aboard.sandbox.namespaces import helper_program

pytestmark = pytest.mark.ground
BLIND = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")


def ok(host: Host, *argv: str, root: bool = False) -> str:
    done = host.run(argv, root=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_crew_reaches_every_host_by_ssh_from_the_head(box: Sandbox) -> None:
    """Key, host key, name and address are all in place, for the head itself too."""
    for host in box.hosts.values():
        for target in (host.name, host.address):
            said = ok(box.head, "ssh", "-o", "BatchMode=yes", target, "hostname; id -un; echo $PATH")
            assert said.split("\n") == [host.name, "crew", "/usr/local/bin:/usr/bin:/bin"]


def test_each_host_has_its_own_host_key(box: Sandbox) -> None:
    """No two hosts can pass for one another."""
    assert len({host.ssh_host_key() for host in box.hosts.values()}) == len(box.hosts)


def test_root_and_passwords_are_refused(box: Sandbox) -> None:
    """Only crew, and only by key."""
    refused = box.head.run(["ssh", "-o", "BatchMode=yes", "-l", "root", "n1", "true"])
    assert "Permission denied (publickey)" in refused.stderr
    keyless = box.head.run(["ssh", "-o", "BatchMode=yes", "-o", "PubkeyAuthentication=no", "n1", "true"])
    assert "Permission denied (publickey)" in keyless.stderr


def test_a_command_runs_as_crew_with_nothing_of_root(box: Sandbox) -> None:
    """User, groups, capabilities and environment are those of a login."""
    n1 = box.hosts["n1"]
    assert ok(n1, "sh", "-c", "id -un; id -Gn; pwd").split() == ["crew", "crew", "/home/crew"]
    status = ok(n1, "grep", "-E", "^Cap(Inh|Prm|Eff|Amb)|^Groups", "/proc/self/status")
    assert {line.split()[1] for line in status.splitlines() if line.startswith("Cap")} == {"0" * 16}
    names = {line.split("=")[0] for line in ok(n1, "env").splitlines()}
    # Its share of the cores, which a host of its own would not need.
    assert names == {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "OMP_NUM_THREADS"}


def test_tmp_and_private_are_own_and_shared_is_shared(box: Sandbox) -> None:
    """What n1 writes, n2 sees in /shared alone, and the machine sees nowhere."""
    n1, n2 = box.hosts["n1"], box.hosts["n2"]
    for place in ("/tmp", "/dev/shm", "/private", "/home/crew", "/var/tmp", "/shared"):
        ok(n1, "touch", f"{place}/{box.name}")
        seen = n2.run(["test", "-e", f"{place}/{box.name}"]).returncode == 0
        assert seen == (place == "/shared"), place
        assert not os.path.exists(f"{place}/{box.name}"), place  # noqa: PTH110 - may be on another host
    ok(n1, "touch", "/run/mine", "/etc/mine", root=True)
    assert n2.run(["ls", "/run/mine", "/etc/mine"]).stdout == ""


def test_a_host_sees_only_its_own_processes(box: Sandbox) -> None:
    """n2 has no trace of what runs on n1, and the machine finds it by `pids`."""
    n1, n2 = box.hosts["n1"], box.hosts["n2"]
    with n1.popen(["sleep", "4242"]) as process:
        wait_until(lambda: "sleep 4242" in n1.run(["ps", "ax"]).stdout, 10)
        assert "sleep 4242" not in n2.run(["ps", "ax"]).stdout
        assert any(_cmdline(pid) == "sleep 4242" for pid in n1.pids())
        assert not any(_cmdline(pid) == "sleep 4242" for pid in n2.pids())
        process.kill()


def test_the_head_can_run_this_aboard(box: Sandbox) -> None:
    """The shim finds our source and our interpreter as the ordinary user, and the hostfile is there."""
    assert "aboard" in box.head.run(["aboard", "--help"]).stdout.lower()
    assert ok(box.head, "cat", "hostfile").splitlines() == [f"n{i} slots=2" for i in range(1, 5)]


def test_a_timeout_ends_the_whole_session(box: Sandbox) -> None:
    """Nothing of a command that took too long runs on, its children included."""
    n1 = box.hosts["n1"]
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        n1.run(["sh", "-c", "sleep 5151 & sleep 5152"], timeout=1)
    assert caught.value.cmd[0] == "sh"
    wait_until(lambda: not any(_cmdline(pid).startswith("sleep 515") for pid in n1.pids()), 10)


def test_killing_the_handle_ends_the_session(box: Sandbox) -> None:
    """SIGKILL leaves the handle no chance to tell anyone, and yet what it started ends."""
    n1 = box.hosts["n1"]
    with n1.popen(["sh", "-c", "sleep 6161 & sleep 6162"]) as process:
        wait_until(lambda: sum(_cmdline(pid).startswith("sleep 616") for pid in n1.pids()) == 2, 10)
        process.kill()
    wait_until(lambda: not any(_cmdline(pid).startswith("sleep 616") for pid in n1.pids()), 10)


def test_exit_codes_and_signals_come_out_as_they_are(box: Sandbox) -> None:
    """A code is a code, a signal is a signal, and a program that isn't there is 127."""
    n1 = box.hosts["n1"]
    assert n1.run(["sh", "-c", "exit 7"]).returncode == 7
    assert n1.run(["sh", "-c", "kill -TERM $$"]).returncode == -signal.SIGTERM
    assert n1.run(["no-such-program"]).returncode == 127
    assert n1.run(["cat"], input="hello").stdout == "hello"


def test_a_secret_in_env_is_on_no_command_line(box: Sandbox) -> None:
    """Whoever lists processes, here or in the host, doesn't read it."""
    with box.hosts["n1"].popen(["sleep", "7171"], env={"TOKEN": "s3cr3t-7171"}) as process:
        wait_until(lambda: any(_cmdline(pid) == "sleep 7171" for pid in box.hosts["n1"].pids()), 10)
        assert "s3cr3t-7171" not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
        process.kill()


def test_the_fabric_is_a_second_network(make_box: Callable[..., Sandbox]) -> None:
    """n2i is on eth1, n2 on eth0, and both take crew in."""
    box = make_box(nodes=2, fabric=True)
    assert box.hosts["n2"].fabric_address == "10.78.0.2"
    for name, card in (("n2", "eth0"), ("n2i", "eth1")):
        command = f"ip -o addr show to $(getent hosts {name} | cut -d' ' -f1)"
        assert card in ok(box.head, "ssh", "-o", "BatchMode=yes", name, f"PATH=$PATH:/usr/sbin; {command}")


def test_a_shared_home_is_the_same_on_all_hosts(make_box: Callable[..., Sandbox]) -> None:
    """What crew writes at home on one host is at home on every other, also after a power cycle."""
    box = make_box(nodes=2, shared_home=True)
    n1, n2 = box.hosts["n1"], box.hosts["n2"]
    ok(n1, "touch", "/home/crew/seen")
    n2.kill_power()
    n2.power_on()
    assert all("seen" in ok(host, "ls", "/home/crew").split() for host in box.hosts.values())
    assert ok(box.head, "stat", "-c", "%U %a", "/home/crew") == "crew 700"
    assert ok(box.head, "ssh", "-o", "BatchMode=yes", "n2", "ssh -o BatchMode=yes n1 hostname") == "n1"


def test_a_bare_node_has_an_admin_key_and_nothing_of_the_builder(make_box: Callable[..., Sandbox]) -> None:
    """No shared directory, sources or user key; the base interpreter is there, and admin.pem logs in."""
    box = make_box(nodes=2, bare=True)
    n1 = box.hosts["n1"]
    assert box.head.run(["ls", "/shared"]).returncode != 0
    assert sorted(ok(box.head, "ls", "-A").split()) == [
        ".bashrc",
        ".profile",
        ".ssh",
        "admin.pem",
        "fingerprints",
        "hostfile",
    ]
    assert ok(box.head, "ls", "-A", ".ssh") == "authorized_keys"
    assert ok(box.head, "stat", "-c", "%a", "admin.pem") == "600"
    assert n1.run(["ls", "/shared"]).returncode != 0
    assert n1.run(["which", "aboard"]).returncode == 1
    if not helper_program.SOURCE.resolve().is_relative_to(sys.base_prefix):
        assert n1.run(["ls", str(helper_program.SOURCE)]).returncode != 0
    assert ok(n1, f"{sys.base_prefix}/bin/python3", "-c", "print('runs')") == "runs"
    assert ok(n1, "cat", ".ssh/authorized_keys").split() == ok(box.head, "ssh-keygen", "-yf", "admin.pem").split()
    assert "Permission denied" in box.head.run(["ssh", *BLIND, "-o", "BatchMode=yes", "n1", "true"]).stderr
    assert ok(box.head, "ssh", *BLIND, "-i", "admin.pem", "n1", "hostname") == "n1"
    assert "aboard" in box.head.run(["aboard", "--help"]).stdout.lower()


def test_the_fingerprints_of_bare_nodes_are_those_that_ssh_keygen_prints(make_box: Callable[..., Sandbox]) -> None:
    """Each node's line is what OpenSSH says about the key that it offers."""
    box = make_box(nodes=2, bare=True)
    lines = ok(box.head, "sh", "-c", "ssh-keyscan -t ed25519 n1 n2 > offered && ssh-keygen -lf offered")
    assert sorted(ok(box.head, "cat", "fingerprints").splitlines()) == sorted(lines.splitlines())


def test_power_loss_is_silent_and_the_disk_survives_it(make_box: Callable[..., Sandbox]) -> None:
    """A peer's connection hears no farewell; after power on, disk and host key are as before, /tmp is new."""
    box = make_box(nodes=2)
    n1, n2 = box.hosts["n1"], box.hosts["n2"]
    key = n2.ssh_host_key()
    ok(n2, "touch", "/private/kept", "/tmp/lost")
    hold = "import socket; s = socket.create_connection(('n2', 22)); s.recv(99); print('in', flush=True); s.recv(9)"
    with n1.popen(["python3", "-c", hold], stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        assert peer.stdout.readline() == "in\n"
        n2.kill_power()
        with pytest.raises(subprocess.TimeoutExpired):
            peer.wait(timeout=1)
        peer.kill()
    assert not n2.on
    with pytest.raises(SandboxError, match=r"n2 in sandbox .* is off"):
        n2.run(["true"])
    assert Sandbox.attach(box.name).hosts["n1"].on
    n2.power_on()
    assert ok(n2, "ls", "/private") == "kept"
    assert n2.run(["test", "-e", "/tmp/lost"]).returncode == 1
    assert n2.ssh_host_key() == key
    assert ok(box.head, "ssh", "-o", "BatchMode=yes", "n2", "hostname") == "n2"
    assert Sandbox.attach(box.name).hosts["n2"].pid == n2.pid


def test_a_new_host_key_is_noticed_and_sshd_takes_options(make_box: Callable[..., Sandbox]) -> None:
    """A client refuses a host that has another key; with an option sshd can be made to listen elsewhere."""
    box = make_box(nodes=2)
    old = box.hosts["n1"].ssh_host_key()
    assert box.hosts["n1"].ssh_host_key(new=True) != old
    changed = box.head.run(["ssh", "-o", "BatchMode=yes", "n1", "true"])
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in changed.stderr
    box.hosts["n2"].sshd_restart(["Port=2222"])
    assert "refused" in box.head.run(["ssh", "-o", "BatchMode=yes", "n2", "true"]).stderr
    there = ["ssh", "-o", "BatchMode=yes", "-o", "HostKeyAlias=n2", "-p", "2222", "n2", "hostname"]
    assert ok(box.head, *there) == "n2"


def _cmdline(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:  # noqa: PTH123 - one line, read at once
            return file.read().replace("\0", " ").strip()
    except OSError:
        return ""

"""The texts that make a host, compared whole."""

from pathlib import Path

from aboard.sandbox.containers.prepare_host import build_podman_files
from aboard.sandbox.host_setup import network_commands, system_files
from aboard.sandbox.layout import SandboxLayout

PAIR = SandboxLayout(name="sandbox", nodes=2, slots=8, fabric=True)


def test_hosts_file() -> None:
    """Every host has its name, and its fabric name, on the address that its peers reach."""
    assert system_files.format_hosts_file(PAIR) == (
        "127.0.0.1 localhost\n"
        "::1 localhost ip6-localhost ip6-loopback\n"
        "10.77.255.1 head\n"
        "10.78.255.1 headi\n"
        "10.77.0.1 n1\n"
        "10.78.0.1 n1i\n"
        "10.77.0.2 n2\n"
        "10.78.0.2 n2i\n"
    )


def test_hostfile() -> None:
    """The head has no slots, so it isn't in it."""
    assert system_files.format_hostfile(PAIR) == "n1 slots=8\nn2 slots=8\n"


def test_known_hosts() -> None:
    """A key stands for every name and address of its host."""
    keys = {"head": "ssh-ed25519 H", "n1": "ssh-ed25519 A", "n2": "ssh-ed25519 B"}
    assert system_files.format_known_hosts(PAIR.places.values(), keys) == (
        "head,10.77.255.1,headi,10.78.255.1 ssh-ed25519 H\n"
        "n1,10.77.0.1,n1i,10.78.0.1 ssh-ed25519 A\n"
        "n2,10.77.0.2,n2i,10.78.0.2 ssh-ed25519 B\n"
    )


def test_a_user_takes_the_place_of_one_of_that_name() -> None:
    """The machine may have a crew of its own."""
    before = "root:x:0:0::/root:/bin/sh\ncrew:x:5:5::/x:/bin/false\ncrewman:x:6:6::/:/bin/sh\n"
    assert system_files.set_user_entry(before, "crew:x:7700:7700::/home/crew:/bin/bash") == (
        "root:x:0:0::/root:/bin/sh\ncrewman:x:6:6::/:/bin/sh\ncrew:x:7700:7700::/home/crew:/bin/bash\n"
    )


def test_a_free_number_is_nobodys() -> None:
    """Neither a user nor a group, nor a user's group, has it."""
    assert system_files.find_free_id("a:x:7700:7701::/:/bin/sh\n", "g:x:7702:\n") == 7703
    assert system_files.find_free_id("a:x:7700:7700::/:/bin/sh\n", taken={7701}) == 7702


def test_the_shim_runs_this_python_on_this_source() -> None:
    """Quoted as a shell wants it; PYTHONPATH only where aboard isn't installed."""
    assert system_files.format_aboard_shim("/opt/my py/bin/python", "/src dir") == (
        "#!/bin/bash\n"
        "export PYTHONPATH='/src dir'${PYTHONPATH:+:$PYTHONPATH}\n"
        "exec '/opt/my py/bin/python' -m aboard \"$@\"\n"
    )
    assert (
        system_files.format_aboard_shim("/usr/bin/python3", None)
        == '#!/bin/bash\nexec /usr/bin/python3 -m aboard "$@"\n'
    )


def test_the_switch_and_its_cables() -> None:
    """A bridge per network, and a port per host and network that has the host's name."""
    assert network_commands.format_switch_batch(fabric=False) == (
        "link add mgmt type bridge forward_delay 0 stp_state 0\nlink set mgmt up\n"
    )
    assert network_commands.format_cable_batch([(PAIR.places["n2"], 17)]) == (
        "link add n2 type veth peer name eth0 address 02:10:77:00:00:02 netns 17\n"
        "link set n2 master mgmt up\n"
        "link add n2i type veth peer name eth1 address 02:10:78:00:00:02 netns 17\n"
        "link set n2i master fabric up\n"
    )
    assert network_commands.list_switch_ports(PAIR.places["n2"]) == ["n2", "n2i"]


def test_a_host_plugs_in_its_cards() -> None:
    """Loopback, address, up; in a small sandbox neighbours find each other by themselves."""
    assert network_commands.format_host_batch(PAIR.places["n1"], PAIR) == (
        "link set lo up\n"
        "addr add 10.77.0.1/16 brd + dev eth0\n"
        "link set eth0 up\n"
        "addr add 10.78.0.1/16 brd + dev eth1\n"
        "link set eth1 up\n"
    )


def test_many_hosts_are_introduced_to_each_other() -> None:
    """Past what the kernel's table of neighbours holds, each is told of all others and never of itself."""
    many = SandboxLayout(name="sandbox", nodes=64, slots=1, fabric=False)
    lines = network_commands.format_host_batch(many.places["n1"], many).splitlines()
    told = [line for line in lines if line.startswith("neigh")]
    assert len(told) == 64
    assert told[0] == "neigh add 10.77.255.1 lladdr 02:10:77:00:00:00 nud stale extern_learn dev eth0"
    assert not any(" 10.77.0.1 " in line for line in told)


def test_files_for_podman() -> None:
    """No control groups, the host's network, subordinate ids, and the host's programs in every container."""
    assert build_podman_files({Path("/usr"): Path("/usr"), Path("/opt/venv"): Path("/opt/images/environment")}) == {
        "/etc/subuid": "crew:100000:65536\n",
        "/etc/subgid": "crew:100000:65536\n",
        "/etc/containers/storage.conf": '[storage]\ndriver = "vfs"\n',
        "/etc/containers/containers.conf": (
            "[containers]\n"
            'cgroups = "disabled"\n'
            'netns = "host"\n'
            'volumes = ["/usr:/usr:ro", "/opt/images/environment:/opt/venv:ro"]\n'
            "\n"
            "[engine]\n"
            'cgroup_manager = "cgroupfs"\n'
            'events_logger = "file"\n'
        ),
    }

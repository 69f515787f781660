"""ssh, pdsh and the shell at the far end."""

from aboard.verdicts.logs.symptom import Symptom, cause, end

_CHECK = "aboard check --only reach    # every node, with the reason"

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "reach-key-refused",
        r"(?:(?P<node>[\w.-]+): )?Permission denied \([\w,-]*publickey[\w,-]*\)",
        "The node accepts none of the keys that ssh offered, or its ~/.ssh is open to others.",
        "ssh-copy-id {node}    # or: aboard trust",
        "chmod 700 ~/.ssh; chmod 600 ~/.ssh/authorized_keys    # on {node}",
        weight=3,
    ),
    cause(
        "reach-host-key-changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending (?:\w+ )?key in",
        "The node shows another key than before: it was installed anew, or it is another machine.",
        "ssh-keygen -R {node}    # once you know why it changed",
        weight=3,
    ),
    cause(
        "reach-host-key-unknown",
        r"Host key verification failed",
        "ssh doesn't know the node's key, and was told not to ask.",
        "ssh {node} true    # once by hand, and say yes; or: aboard trust",
        weight=2,
    ),
    cause(
        "reach-refused",
        r"connect to host (?P<node>\S+) port (?P<port>\d+): Connection refused",
        "The node is up, and no ssh server listens on that port.",
        "sudo systemctl start ssh    # on {node}; or set its port in ~/.ssh/config",
        weight=3,
    ),
    cause(
        "reach-no-route",
        r"connect to host (?P<node>\S+) port (?P<port>\d+): (?:No route to host|Network is unreachable)",
        "There is no way to the node: it is down, or a firewall says no.",
        "ping -c 3 {node}    # is it up?",
        weight=3,
    ),
    cause(
        "reach-timeout",
        r"connect to host (?P<node>\S+) port (?P<port>\d+): (?:Connection|Operation) timed out"
        r"|ssh: connect.*timed out",
        "Nothing comes back from the node: it is down, or a firewall drops the packets.",
        "ping -c 3 {node}    # is it up?",
        weight=3,
    ),
    cause(
        "reach-unresolved",
        r"Could not resolve hostname (?P<node>\S+?):",
        "The node's name means nothing on the machine that dials.",
        "getent hosts {node}    # then a line in /etc/hosts or ~/.ssh/config",
        weight=3,
    ),
    cause(
        "reach-dropped",
        r"kex_exchange_identification: (?:Connection closed|read: Connection reset)|ssh_exchange_identification",
        "The ssh server drops logins: too many at once (MaxStartups).",
        "sudo sshd -T | grep maxstartups    # on {node}; raise it, or start fewer at once: pdsh -f 16",
        weight=3,
    ),
    cause(
        "reach-no-python",
        r"(?:bash|sh|zsh|env|-bash)(?:: line \d+)?: ?[\u2018'\"]?(?P<program>(?:torchrun|python3?|deepspeed"
        r"|accelerate)\S*?)['\u2019\"]?: (?:command not found|No such file or directory|not found)"
        r"|execve\(\): (?P<program2>\S+): No such file or directory|(?P<program3>torchrun|deepspeed|accelerate"
        r"|python3?): command not found",
        "The shell that a remote command gets is no login shell: its PATH has no such program.",
        "ssh {node} 'command -v python3; echo $PATH'    # what ranks get; then give the absolute path of the program",
        weight=3,
    ),
    end(
        "reach-lost",
        r"pdsh@\S+: (?P<node>[\w.-]+): ssh exited with exit code 255|client_loop: send disconnect"
        r"|Connection to (?P<host>\S+) closed by remote host",
        "The connection to the node was cut.",
        _CHECK,
    ),
    end(
        "run-exited",
        r"pdsh@\S+: (?P<node>[\w.-]+): ssh exited with exit code (?P<code>\d+)",
        "The command on the node ended with that code.",
        "grep -F {node}': ' LOG | tail -50    # what it said last",
    ),
)

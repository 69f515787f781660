"""Nodes that can't be reached, and logins that are slow or noisy."""

from aboard.diagnoses.diagnosis import Diagnosis, remark, warning
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.output_patterns import cause, end
from aboard.diagnoses.slurm import steps
from aboard.diagnoses.unreachable_reason import UnreachableReason

_LET_SSH_IN = (
    "sudo iptables -I INPUT -p tcp --dport {port} -j ACCEPT    # on {node}; allows ssh until the next reboot\n"
    "# for good: sudo ufw allow {port}/tcp, or sudo firewall-cmd --permanent --add-port={port}/tcp && sudo"
    " firewall-cmd --reload"
)
_TAKE_KEY = (
    "ssh {ssh:shell} -o StrictHostKeyChecking=accept-new true    # here; accepts the key that the node presents\n"
    "ssh-keygen -lF {known}    # here; must match `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the"
    " node"
)
_MORE_PLACES = (
    "echo 'MaxStartups 100:30:200' | sudo tee /etc/ssh/sshd_config.d/00-startups.conf    # on {node}\n"
    "sudo systemctl reload ssh    # on {node}"
)
_QUIET = (
    "sed -i '1i [[ $- == *i* ]] || return' ~/.bashrc    # on {node}; skips the rest of the file in non-interactive"
    " shells\n"
    "ssh {ssh:shell} true    # here; must print nothing"
)
# In a Slurm job.
_STEP = "srun --overlap --nodes=1 --ntasks=1 --nodelist={node}"
_SHOW_NODE = "scontrol show node {node} | grep -E 'State|Reason'    # here\n"
_DROPS = (
    "sshd closed connections before the key exchange. Either all clients together have more logins in progress than"
    " sshd's MaxStartups allows, or fail2ban has banned this machine."
)
# Probes that run the way a rank starts, after the `setup` lines: they fail if a line does.
UNANSWERED = (
    "unknown-software",
    "unknown-storage",
    "unknown-storage-room",
    "unknown-nccl-plugins",
    "unknown-visible-gpus",
    "unknown-torch",
)

REFUSED = Diagnosis(
    code="reach-refused",
    title="nothing is listening on the ssh port",
    symptoms=("ssh: connect to host n2 port 22: Connection refused",),
    explanation="The machine is up, but no ssh server is listening on that port, or a firewall rejects connections"
    " with a TCP reset.",
    fixes="sudo systemctl start ssh    # on {node}; if its sshd uses a different port, set `port:` in aboard.yaml",
    log_fix="sudo systemctl start ssh    # on {node}; or set its port in ~/.ssh/config",
    patterns=cause(r"connect to host (?P<node>\S+) port (?P<port>\d+): Connection refused"),
)

TIMEOUT = Diagnosis(
    code="reach-timeout",
    title="the node does not respond",
    symptoms=("ssh: connect to host n2 port 22: Connection timed out",),
    explanation="No packet came back. Either the machine is down, or a firewall drops the packets.",
    fixes={
        "": (
            "ping -c 3 {target}    # here; if it is down, power it on; if it is up, check the cloud's security group\n"
            + _LET_SSH_IN
        ),
        "srun": (_SHOW_NODE + _STEP + " hostname    # in the job; does srun start anything there?"),
    },
    log_fix="ping -c 3 {node}    # is it up?",
    patterns=cause(
        r"connect to host (?P<node>\S+) port (?P<port>\d+): (?:Connection|Operation) timed out"
        r"|ssh: connect.*timed out"
    ),
)

NO_ROUTE = Diagnosis(
    code="reach-no-route",
    title="there is no route to the node",
    symptoms=("ssh: connect to host n2 port 22: No route to host", "Network is unreachable"),
    explanation="The network reports that there is no route to the node. The node may be off or in a different"
    " network, or a firewall may reject the connection.",
    fixes="ping -c 3 {target}    # here; shows which machine reports that there is no route\n" + _LET_SSH_IN,
    log_fix="ping -c 3 {node}    # is it up?",
    patterns=cause(
        r"connect to host (?P<node>\S+) port (?P<port>\d+): (?:No route to host|Network is unreachable)",
        "There is no route to the node. The node may be down, or a firewall may reject the connection.",
    ),
)

UNRESOLVED = Diagnosis(
    code="reach-unresolved",
    title="the node's name can't be resolved",
    symptoms=("ssh: Could not resolve hostname n2: Name or service not known", "Temporary failure in name resolution"),
    explanation="This machine can't find an address for the node's name, so it did not try to connect.",
    fixes={
        "": Advice("correct the name, or set `address:` for {node} in aboard.yaml"),
        "known": "echo {line} | sudo tee -a /etc/hosts    # here; or set `address:` for {node} in aboard.yaml",
    },
    log_fix="getent hosts {node}    # then add it to /etc/hosts or ~/.ssh/config",
    patterns=cause(
        r"Could not resolve hostname (?P<node>\S+?):", "The connecting machine can't resolve the node's name."
    ),
)

KEY_REFUSED = Diagnosis(
    code="reach-key-refused",
    title="the node accepts none of this machine's ssh keys",
    symptoms=("Permission denied (publickey).", "Too many authentication failures"),
    explanation="Usually the user's authorized_keys file on the node doesn't list any key that this machine offers, or"
    " sshd ignores the file because others can write to it.",
    fixes={
        "": "chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys    # on {node}; sshd ignores keys in files that others can"
        " write to\n"
        "{trust:shell aboard trust}    # here; installs your key\n"
        "sudo journalctl -u ssh -n 20    # on {node}; shows why sshd still refuses the key. Or correct `user:` in"
        " aboard.yaml",
        "mode": "chmod 600 {path}    # here; ssh ignores a key that others can read",
        "make": "{trust:shell aboard trust}    # here; creates a key and installs it on every node",
    },
    log_fix="aboard trust {node}    # here; installs your key. For logins between nodes: aboard trust --mesh NODES\n"
    "chmod 700 ~/.ssh; chmod 600 ~/.ssh/authorized_keys    # on {node}",
    patterns=(
        cause(
            r"(?:(?<![\w.-])(?P<node>[\w.-]{1,255}): )?Permission denied \([\w,-]*publickey[\w,-]*\)",
            "The node does not accept any of the keys that ssh offered, or others can write to ~/.ssh on the node.",
        ),
        cause(
            r"CalledProcessError: Command '(?:ssh|/usr/bin/ssh)(?: -\w| \w+=\w+)* (?P<node>[\w.@-]+) [^']{0,200}'"
            r" returned non-zero exit status 255",
            "The launcher tests that it can log in with ssh without a password, and ssh failed: the node accepts no key"
            " of this machine, or can't be reached at all.",
            precedence=450,
            weight=2,
        ),
    ),
)

HOST_KEY_CHANGED = Diagnosis(
    code="reach-host-key-changed",
    title="the node's host key has changed",
    symptoms=("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!", "Host key verification failed."),
    explanation="Either the node was reinstalled, or someone is intercepting the connection. ssh refuses to connect"
    " while the old key is in known_hosts.",
    fixes="ssh-keygen -R {known}    # here; only if you know that the node was reinstalled\n" + _TAKE_KEY,
    log_fix="ssh-keygen -R {node}    # once you know why it changed",
    patterns=cause(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending (?:\w+ )?key in"),
)

HOST_KEY_UNKNOWN = Diagnosis(
    code="reach-host-key-unknown",
    title="the node's host key is unknown",
    symptoms=(
        "Host key verification failed.",
        "No ED25519 host key is known for n2 and you have requested strict checking.",
    ),
    explanation="This machine has never seen the node's host key. A run sends code and tokens to the node, so Aboard"
    " does not trust the key blindly.",
    fixes="{trust:shell aboard trust}    # here; shows new host keys and asks you to compare them",
    log_fix="aboard trust {node}    # here; shows its host key and asks. For logins between nodes: aboard trust --mesh"
    " NODES",
    patterns=cause(
        r"Host key verification failed", "ssh doesn't know the node's host key, and is configured not to ask.", weight=2
    ),
)

DROPPED = Diagnosis(
    code="reach-dropped",
    title="sshd drops logins",
    symptoms=(
        "kex_exchange_identification: Connection closed by remote host",
        "ssh_exchange_identification: read: Connection reset by peer",
    ),
    explanation=_DROPS,
    fixes=_MORE_PLACES,
    log_fix="sudo sshd -T | grep maxstartups    # on {node}; raise the limit, or start fewer logins at once, for"
    " example with pdsh -f 16",
    patterns=cause(
        r"kex_exchange_identification: (?:Connection closed|read: Connection reset)|ssh_exchange_identification"
    ),
)

NO_PYTHON = Diagnosis(
    code="reach-no-python",
    title="the ranks' shell can't find Python",
    symptoms=("bash: line 1: python3: command not found", "torchrun: command not found"),
    explanation="The login works, but the ranks' shell can't find the Python that was requested. The shell is not a"
    " login shell, so ~/.profile and `conda activate` in ~/.bashrc have no effect.",
    fixes={
        "": "ssh {ssh:shell} {find:shell}    # here; if a login shell finds it, set `python:` to that path\n"
        "sudo apt-get install -y python3    # on {node}; if no Python is installed",
        "srun": (
            _STEP + " bash -lc {lookup}    # in the job; if a login shell finds it, set `python:` to that path\n"
            "sudo apt-get install -y python3    # on {node}; if no Python is installed"
        ),
        "setup": Advice("setup: {lines}    # in aboard.yaml, {where}; keeps the existing PATH"),
        "python": Advice("python: {path}    # in aboard.yaml, {where}"),
        "path": "command -v {python}    # on {node}; set `python:` in aboard.yaml to its full path",
    },
    log_fix="ssh {node} 'command -v python3; echo $PATH'    # shows the ranks' PATH; then use the program's absolute"
    " path",
    leads_to=UNANSWERED,
    patterns=cause(
        r"(?:bash|sh|zsh|env|-bash)(?:: line \d+)?: ?[\u2018'\"]?(?P<program>(?:torchrun|python3?|deepspeed"
        r"|accelerate)\S*?)['\u2019\"]?: (?:command not found|No such file or directory|not found)"
        r"|execve\(\): (?P<program2>\S+): No such file or directory|(?P<program3>torchrun|deepspeed|accelerate"
        r"|python3?): command not found",
        "A remote command gets a non-login shell, whose PATH does not contain the program.",
    ),
)

OLD_PYTHON = Diagnosis(
    code="reach-old-python",
    title="the node's Python is too old",
    symptoms=("aboard: python 3.6.8",),
    explanation="Aboard's agent needs Python 3.9 or later on the node.",
    fixes={
        "": "ssh {ssh:shell} 'ls /usr/bin/python3* /opt/conda/bin/python'    # here; set `python:` for {node}"
        " to a newer one",
        "srun": (
            _STEP + " sh -c 'ls /usr/bin/python3* /opt/conda/bin/python'    # in the job; set `python:` to a newer one"
        ),
        "newer": Advice("python: {path}    # in aboard.yaml, for {node}; or another Python 3.9+ with your packages"),
    },
)

SHELL_NOISE = Diagnosis(
    code="reach-shell-noise",
    title="the login shell prints endlessly",
    symptoms=("a login that prints menus or a banner in a loop",),
    explanation="The login shell keeps printing, so it never runs Aboard's command. Usually a start-up file asks for"
    " input again and again.",
    fixes=_QUIET,
)

GARBAGE = Diagnosis(
    code="reach-garbage",
    title="the reply is not from Aboard's agent",
    symptoms=("a forced command or a script replies in place of Python",),
    explanation="Something else replied in the agent's place: usually a forced command in authorized_keys, a restricted"
    " shell, or a script named python3.",
    fixes={
        "": "ssh {ssh:shell} {ask}    # must print a version and nothing else",
        "srun": (_STEP + " {python} --version    # in the job; must print a version and nothing else"),
    },
)

WRONG_VERSION = Diagnosis(
    code="reach-wrong-version",
    title="a different version of Aboard replied",
    symptoms=("speaks version 2 of the protocol",),
    explanation="A different version of Aboard is still supervising a run on the node, and it is incompatible"
    " with the version on this machine.",
    fixes="pip install --upgrade aboard    # on the machine where you run aboard",
)

SILENT = Diagnosis(
    code="reach-silent",
    title="the node was reached but sends nothing",
    symptoms=("Connection timed out during banner exchange", "ssh hangs after `debug1: pledge: filesystem`"),
    explanation="Possible causes: the home directory is on a dead mount (`ssh root@NODE` may still work), the machine"
    " is swapping endlessly, or a process that the connection needs has been stopped.",
    fixes={
        "": "timeout 30 ssh -v {ssh:shell} true    # here; note where it stops",
        "srun": (_SHOW_NODE + "timeout 30 " + _STEP + " -v true    # in the job; note where it stops"),
    },
)

NO_SSH = Diagnosis(
    code="reach-no-ssh",
    title="the ssh program is missing on this machine",
    symptoms=("ssh: command not found",),
    explanation="Aboard uses the OpenSSH client to reach nodes.",
    fixes="sudo apt-get install openssh-client    # Red Hat: openssh-clients",
)

LOST = Diagnosis(
    code="reach-lost",
    title="the connection was established and then lost",
    symptoms=("client_loop: send disconnect: Broken pipe", "Connection to n2 closed by remote host."),
    explanation="Possible causes: two machines have the same address, a session limit (MaxSessions, TasksMax) was"
    " reached, or the network is flapping.",
    fixes={
        "": "ssh {ssh:shell} true    # here; run it a few times; if it sometimes fails, check {node}'s network",
        "srun": (_SHOW_NODE + _STEP + " true    # in the job; run it a few times; does it always work?"),
    },
    log_fix="aboard check --only reach    # shows the reason for every node",
    patterns=end(
        r"pdsh@\S+: (?P<node>[\w.-]+): ssh exited with exit code 255|client_loop: send disconnect"
        r"|Connection to (?P<host>\S+) closed by remote host"
    ),
)

UNKNOWN = Diagnosis(
    code="reach-unknown",
    title="ssh failed with an unrecognized error",
    symptoms=("ssh exits with 255",),
    explanation="Aboard doesn't recognize ssh's error message. `ssh -v` shows how far the login gets.",
    fixes="timeout 30 ssh -v {ssh:shell} true    # here; please open an issue with its last lines",
)

DROPPED_AT_FIRST = remark(
    code="reach-dropped-at-first",
    title="sshd dropped logins that succeeded on retry",
    symptoms=("kex_exchange_identification: Connection closed by remote host",),
    explanation=f"{_DROPS} The logins succeeded on retry, but with more nodes or slower logins, more of them will be"
    " dropped.",
    fixes=_MORE_PLACES,
)

NOISY_SHELL = remark(
    code="reach-noisy-shell",
    title="the login shell prints text before it runs a command",
    symptoms=("protocol error: unexpected text", "Received message too long 1416786277"),
    explanation="A shell start-up file prints text even in non-interactive sessions. Aboard skips that output, but"
    " scp, rsync and git over ssh break on it.",
    fixes=_QUIET,
)

SETUP = Diagnosis(
    code="reach-setup",
    title="a `setup` line fails in the ranks' shell",
    symptoms=(
        "torchrun: command not found",
        "module: command not found",
        "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.",
    ),
    explanation="Ranks get a plain `bash`, not a login shell, so a PATH, a `module` command or a conda environment that"
    " ~/.bashrc or /etc/profile sets up in your terminal is missing. The `setup` lines in aboard.yaml run in this shell"
    " before each rank starts, and one of them failed.",
    remedy="To use `module`, make `. /etc/profile.d/modules.sh` (or lmod.sh) the first `setup` line; for conda, `."
    " /opt/conda/etc/profile.d/conda.sh`. You usually need neither if `python:` points to the environment's own"
    " interpreter, such as /opt/venv/bin/python. To test a line in the ranks' shell, run `ssh NODE bash -c"
    " \"'LINE'\"`.",
    fixes={
        "setup": Advice("setup: {lines}    # in aboard.yaml, {where}; {otherwise}"),
        "try": "{line:shell ssh NODE 'bash -c …'}    # here; runs the line as a rank would; fix the line in"
        " aboard.yaml",
    },
    leads_to=UNANSWERED,
)

SLOW_LOGIN = warning(
    code="reach-slow-login",
    title="a login takes many seconds",
    symptoms=("ssh takes 10 to 60 seconds to log in", "the launch on one node lags behind the others"),
    explanation="Every launch waits for the slowest login, and a slow login is often the first sign of a dead name"
    " server (UseDNS, GSSAPI) or file server. Aboard compares the node with the others to discount delays that this"
    " machine's own load causes.",
    fixes={
        "connect": "getent hosts {target}    # here; is name resolution slow, or the network?\nping -c 3 {target}"
        "    # here",
        "greeting": "uptime    # on {node}; is it overloaded? An sshd behind a proxy or a TCP wrapper queries DNS"
        " first\n"
        "sudo systemctl restart ssh    # on {node}; if not overloaded, sshd may be stuck or at its connection limit",
        "keys": "uptime    # on {node}; is it overloaded? The key exchange needs CPU time",
        "login": "echo 'UseDNS no' | sudo tee /etc/ssh/sshd_config.d/00-dns.conf    # on {node}\n"
        "sudo systemctl reload ssh    # on {node}\n"
        "time ls -d ~    # on {node}; is the home directory on a dead or slow mount?",
        "shell": "time {python} -c pass    # on {node}; if that is quick, the shell's start-up files (~/.bashrc) are"
        " slow",
    },
)

# The diagnosis of each reason why a node is unreachable.
_DECLARED = {each.code: each for each in (*globals().values(), *vars(steps).values()) if isinstance(each, Diagnosis)}
UNREACHED = {reason: _DECLARED[f"reach-{reason.value}"] for reason in UnreachableReason}

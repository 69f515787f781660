"""Nodes that don't answer, and logins that are slow or noisy."""

from collections.abc import Mapping
from dataclasses import replace

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, Command, Shell, Template
from aboard.diagnoses.messages import Message, cause, end
from aboard.diagnoses.reason import Reason

_NO_AGENT = " A node without an agent can't run a rank, so the run can't start."
_LET_SSH_IN = (
    "sudo iptables -I INPUT -p tcp --dport {port} -j ACCEPT    # on {node}; lets ssh in until it boots again\n"
    "# for good: sudo ufw allow {port}/tcp, or sudo firewall-cmd --permanent --add-port={port}/tcp && sudo firewall-cmd"
    " --reload"
)
_TAKE_KEY = (
    "ssh {ssh:shell} -o StrictHostKeyChecking=accept-new true    # here; takes the key that it shows\n"
    "ssh-keygen -lF {known}    # here; must be what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says there"
)
_MORE_PLACES = (
    "echo 'MaxStartups 100:30:200' | sudo tee /etc/ssh/sshd_config.d/00-startups.conf    # on {node}\n"
    "sudo systemctl reload ssh    # on {node}"
)
_QUIET = (
    "sed -i '1i [[ $- == *i* ]] || return' ~/.bashrc    # on {node}; ends it early where nobody looks\n"
    "ssh {ssh:shell} true    # here; must print nothing"
)
_DROPS = "sshd closed connections before the key exchange: more logins are under way there than it lets in."
_DROPS_MORE = (
    "sshd drops at random above MaxStartups (10:30:100 by default). A dropped login was tried again six times."
    " Strangers who knock at an open port 22 fill the places too; fail2ban may have banned this machine."
)
# What stands for the values where nothing is known of a node.
_ANY = {
    **dict.fromkeys(("node", "target", "known"), "NODE"),
    "port": "PORT",
    "ssh": Shell("USER@NODE"),
    "line": "ADDRESS NODE",
    "find": Shell("\"bash -lc 'command -v PYTHON'\""),
    "ask": Shell("PYTHON --version"),
}
# Questions that are put as a rank would be started, after the `setup` lines: what is wrong with those is why they fail.
UNANSWERED = (
    "unknown-software",
    "unknown-storage",
    "unknown-storage-room",
    "unknown-nccl-plugins",
    "unknown-visible-gpus",
    "unknown-torch",
)


def why(unreached: Diagnosis) -> str:
    """What a finding says of it: its explanation without what is the same for all of them."""
    return unreached.explanation.removesuffix(_NO_AGENT)


def _unreached(
    reason: Reason,
    *,
    title: str,
    symptoms: tuple[str, ...],
    why: str,
    fix: str,
    more: str,
    others: Mapping[str, Template] | None = None,
    leads_to: tuple[str, ...] = (),
    log: str = "",
    message: Message | None = None,
) -> Diagnosis:
    """`fix` is lines to type, with what they are for behind a `#`; `more` is what a person should know besides.

    `log` is what to type where a log shows it: its reader may have no aboard.yaml.
    """
    return Diagnosis(
        code=f"reach-{reason.value}",
        title=title,
        symptoms=symptoms,
        explanation=f"{why}{_NO_AGENT}",
        remedy=f"{Command(fix).fill(_ANY)}\n{more}",
        fixes={"": Command(fix), **(others or {})},
        log_fix=log,
        leads_to=leads_to,
        patterns=replace(message, why=message.why or why) if message else (),
    )


REFUSED = _unreached(
    Reason.REFUSED,
    title="nothing listens on the ssh port",
    symptoms=("ssh: connect to host n2 port 22: Connection refused",),
    why="The machine is up, but no ssh server listens on that port.",
    fix="sudo systemctl start ssh    # on {node}; if its sshd has another port, set `port:` in aboard.yaml",
    more="`sudo ss -ltnp | grep sshd` on the node tells its port. On Red Hat the service is called sshd. A firewall"
    " that rejects with a TCP reset looks the same.",
    log="sudo systemctl start ssh    # on {node}; or set its port in ~/.ssh/config",
    message=cause(r"connect to host (?P<node>\S+) port (?P<port>\d+): Connection refused"),
)

TIMEOUT = _unreached(
    Reason.TIMED_OUT,
    title="nothing comes back from the node",
    symptoms=("ssh: connect to host n2 port 22: Connection timed out",),
    why="Nothing came back at all: the machine is down, or a firewall drops the packets.",
    fix="ping -c 3 {target}    # here; is it up? If not, power it on\n" + _LET_SSH_IN,
    more="In a cloud, look at the security group first. If ping works and ssh doesn't, it is a firewall.",
    log="ping -c 3 {node}    # is it up?",
    message=cause(
        r"connect to host (?P<node>\S+) port (?P<port>\d+): (?:Connection|Operation) timed out"
        r"|ssh: connect.*timed out"
    ),
)

NO_ROUTE = _unreached(
    Reason.NO_ROUTE,
    title="there is no way to the node",
    symptoms=("ssh: connect to host n2 port 22: No route to host", "Network is unreachable"),
    why="The network says that there is no way to it: it is off, in another network, or a firewall rejects us.",
    fix="ping -c 3 {target}    # here; who says that there is no way?\n" + _LET_SSH_IN,
    more="If it is on: `sudo iptables -S INPUT` there shows a REJECT that stands before port 22 is accepted."
    " `ip neigh` with FAILED beside the address means that nobody answers for it on the local network.",
    log="ping -c 3 {node}    # is it up?",
    message=cause(
        r"connect to host (?P<node>\S+) port (?P<port>\d+): (?:No route to host|Network is unreachable)",
        "There is no way to the node: it is down, or a firewall says no.",
    ),
)

UNRESOLVED = _unreached(
    Reason.UNRESOLVED,
    title="the node's name means nothing here",
    symptoms=("ssh: Could not resolve hostname n2: Name or service not known", "Temporary failure in name resolution"),
    why="The name means nothing to this machine, so nobody was even dialled.",
    fix="echo {line} | sudo tee -a /etc/hosts    # here; or set `address:` of {node} in aboard.yaml",
    more="A `Host` block with a `HostName` in ~/.ssh/config does as well, for ssh alone; peers need the name too.",
    log="getent hosts {node}    # then a line in /etc/hosts or ~/.ssh/config",
    message=cause(
        r"Could not resolve hostname (?P<node>\S+?):", "The node's name means nothing on the machine that dials."
    ),
)

KEY_REFUSED = _unreached(
    Reason.KEY_REFUSED,
    title="the node accepts none of our keys",
    symptoms=("Permission denied (publickey).", "Too many authentication failures"),
    why="The node does not accept any key that this machine offers for this user.",
    fix="chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys    # on {node}; sshd ignores a key that others may write\n"
    "ssh-copy-id {ssh:shell}    # here; it asks for your password there",
    more="sshd ignores a key whose file, or a directory above it, others may write (StrictModes): its log says"
    " `Authentication refused: bad ownership or modes`; see `sudo journalctl -u ssh -n 20` on the node. Also check"
    " the user name (`user:` in aboard.yaml) and that `ssh-add -l` lists your key.",
    others={
        "mode": Command("chmod 600 {path}    # here; ssh doesn't use a key that others may read"),
        "make": Command("ssh-keygen -t ed25519    # here; it asks where to keep it and for a passphrase"),
        "bring": Command("ssh-copy-id {ssh:shell}    # here; it asks for your password there"),
        "bring-all": Command(
            "for node in {targets:words}; do ssh-copy-id $node; done    # here; it asks for your password there"
        ),
        "bring-all-port": Command(
            "for node in {targets:words}; do ssh-copy-id -p {port} $node; done    # here; it asks for your password"
            " there"
        ),
    },
    log="ssh-copy-id {node}    # or: aboard trust\nchmod 700 ~/.ssh; chmod 600 ~/.ssh/authorized_keys    # on {node}",
    message=cause(
        r"(?:(?P<node>[\w.-]+): )?Permission denied \([\w,-]*publickey[\w,-]*\)",
        "The node accepts none of the keys that ssh offered, or its ~/.ssh is open to others.",
    ),
)

HOST_KEY_CHANGED = _unreached(
    Reason.HOST_KEY_CHANGED,
    title="the node shows another host key than before",
    symptoms=("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!", "Host key verification failed."),
    why="The node shows another host key than before: it was reinstalled, or someone is in between.",
    fix="ssh-keygen -R {known}    # here; only if you know that it was reinstalled\n" + _TAKE_KEY,
    more="On the node's own console `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` shows the right fingerprint.",
    log="ssh-keygen -R {node}    # once you know why it changed",
    message=cause(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending (?:\w+ )?key in"),
)

HOST_KEY_UNKNOWN = _unreached(
    Reason.HOST_KEY_UNKNOWN,
    title="the node's host key was never seen here",
    symptoms=(
        "Host key verification failed.",
        "No ED25519 host key is known for n2 and you have requested strict checking.",
    ),
    why="The node's host key has never been seen here, and is not trusted blindly.",
    fix=_TAKE_KEY,
    more="Keys are checked whatever ssh_config says: a run sends code and tokens to whoever answers.",
    log="ssh {node} true    # once by hand, and say yes; or: aboard trust",
    message=cause(
        r"Host key verification failed", "ssh doesn't know the node's key, and was told not to ask.", weight=2
    ),
)

DROPPED = _unreached(
    Reason.DROPPED,
    title="sshd drops logins",
    symptoms=(
        "kex_exchange_identification: Connection closed by remote host",
        "ssh_exchange_identification: read: Connection reset by peer",
    ),
    why=_DROPS,
    fix=_MORE_PLACES,
    more=_DROPS_MORE,
    log="sudo sshd -T | grep maxstartups    # on {node}; raise it, or start fewer at once: pdsh -f 16",
    message=cause(
        r"kex_exchange_identification: (?:Connection closed|read: Connection reset)|ssh_exchange_identification"
    ),
)

NO_PYTHON = _unreached(
    Reason.NO_PYTHON,
    title="the shell that ranks get finds no Python",
    symptoms=("bash: line 1: python3: command not found", "torchrun: command not found"),
    why="The login works, but the shell that ranks will get finds no such Python.",
    fix="ssh {ssh:shell} {find:shell}    # here; if a login finds it, `python:` must be that path\n"
    "sudo apt-get install -y python3    # on {node}; if there is none at all",
    more="That shell is no login shell: ~/.profile and `conda activate` in ~/.bashrc don't count there. The full"
    " path of the environment's interpreter always works: `python: /opt/venv/bin/python`.",
    others={
        "setup": Advice("setup: {lines}    # in aboard.yaml, {where}; what was in PATH stays in it"),
        "python": Advice("python: {path}    # in aboard.yaml, {where}"),
        "path": Command("command -v {python}    # on {node}; set `python:` in aboard.yaml to its full path"),
    },
    log="ssh {node} 'command -v python3; echo $PATH'    # what ranks get; then give the absolute path of the program",
    leads_to=UNANSWERED,
    message=cause(
        r"(?:bash|sh|zsh|env|-bash)(?:: line \d+)?: ?[\u2018'\"]?(?P<program>(?:torchrun|python3?|deepspeed"
        r"|accelerate)\S*?)['\u2019\"]?: (?:command not found|No such file or directory|not found)"
        r"|execve\(\): (?P<program2>\S+): No such file or directory|(?P<program3>torchrun|deepspeed|accelerate"
        r"|python3?): command not found",
        "The shell that a remote command gets is no login shell: its PATH has no such program.",
    ),
)

OLD_PYTHON = _unreached(
    Reason.OLD_PYTHON,
    title="the node's Python is too old",
    symptoms=("aboard: python 3.6.8",),
    why="The agent needs Python 3.9 or later on the node.",
    fix="ssh {ssh:shell} 'ls /usr/bin/python3* /opt/conda/bin/python'    # here; set `python:` of {node} to"
    " a newer one",
    more="The system's python3 may be old while the environment that you train in is not: name that one.",
    others={
        "newer": Advice("python: {path}    # in aboard.yaml, for {node}; or another one that has your packages"),
    },
)

SHELL_NOISE = _unreached(
    Reason.SHELL_NOISE,
    title="the login shell prints without end",
    symptoms=("a login that prints menus or a banner in a loop",),
    why="The login shell there prints without end instead of running what it is given.",
    fix=_QUIET,
    more="A start-up file that waits for an answer, or restarts itself, does this.",
)

GARBAGE = _unreached(
    Reason.GARBAGE,
    title="what answers is not our agent",
    symptoms=("exec: a shell or a Python that isn't one",),
    why="What came back is not our agent: the login shell or the Python there is not what it seems.",
    fix="ssh {ssh:shell} {ask}    # must print a version and nothing else",
    more="A forced command in authorized_keys, a restricted shell, or a wrapper script called python3 do this.",
)

WRONG_VERSION = _unreached(
    Reason.WRONG_VERSION,
    title="another version of Aboard answers",
    symptoms=("speaks version 2 of the protocol",),
    why="Another version of Aboard answers there; the two don't understand each other.",
    fix="pip install --upgrade aboard    # on the machine where you type aboard",
    more="It can only be a run that an older or newer Aboard started and still keeps.",
)

SILENT = _unreached(
    Reason.SILENT,
    title="the node was reached, and then said nothing",
    symptoms=("Connection timed out during banner exchange", "ssh hangs after `debug1: pledge: filesystem`"),
    why="It was reached, and then said nothing: a login that hangs, a dead home directory, a stopped process.",
    fix="timeout 30 ssh -v {ssh:shell} true    # here; and look at where it stops",
    more="A home directory on a dead NFS server hangs every login; `ssh root@NODE` often still works then. A"
    " machine that swaps without end, or whose disk is broken, answers ping and nothing else.",
)

NO_SSH = _unreached(
    Reason.NO_SSH,
    title="there is no ssh program on this machine",
    symptoms=("ssh: command not found",),
    why="Nodes are reached with the OpenSSH client.",
    fix="sudo apt-get install openssh-client",
    more="On Red Hat the package is openssh-clients.",
)

LOST = _unreached(
    Reason.LOST,
    title="the connection was made and then lost",
    symptoms=("client_loop: send disconnect: Broken pipe", "Connection to n2 closed by remote host."),
    why="The connection was made and then lost.",
    fix="ssh {ssh:shell} true    # here; a few times; if it comes and goes, look at the network of {node}",
    more="Two machines with one address, a session limit of the node's (MaxSessions, systemd's TasksMax), or a"
    " network that flaps do this.",
    log="aboard check --only reach    # every node, with the reason",
    message=end(
        r"pdsh@\S+: (?P<node>[\w.-]+): ssh exited with exit code 255|client_loop: send disconnect"
        r"|Connection to (?P<host>\S+) closed by remote host"
    ),
)

UNKNOWN = _unreached(
    Reason.UNKNOWN,
    title="ssh failed in a way that has no name yet",
    symptoms=("ssh exits with 255",),
    why="ssh failed in a way that we have no name for yet.",
    fix="timeout 30 ssh -v {ssh:shell} true    # here; what it says last",
    more="Please open an issue with what it says: each way that we know has its own name and fix.",
)

DROPPED_AT_FIRST = Diagnosis(
    code="reach-dropped-at-first",
    title="sshd dropped logins that worked when tried again",
    severity=Severity.INFO,
    symptoms=("kex_exchange_identification: Connection closed by remote host",),
    explanation=f"{_DROPS} It worked in the end, and will be worse with more nodes or slower logins.",
    remedy="Raise MaxStartups in the node's sshd_config, as in `MaxStartups 100:30:200`, and reload sshd. "
    + _DROPS_MORE,
    fixes=Command(_MORE_PLACES),
)

NOISY_SHELL = Diagnosis(
    code="reach-noisy-shell",
    title="the login shell prints before any command",
    severity=Severity.INFO,
    symptoms=("protocol error: unexpected text", "Received message too long 1416786277"),
    explanation="A start-up file of the shell prints also when nobody looks. We skip it, but scp, rsync and git"
    " over ssh break on it.",
    remedy="`ssh NODE true` must print nothing. In ~/.bashrc put this first: `[[ $- == *i* ]] || return`.",
    fixes=Command(_QUIET),
)

SETUP = Diagnosis(
    code="reach-setup",
    title="a `setup` line fails in the shell that ranks get",
    symptoms=(
        "torchrun: command not found",
        "module: command not found",
        "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.",
    ),
    explanation="A rank is not started from a login shell, so ~/.bashrc, ~/.profile and /etc/profile.d are not"
    " read there: a PATH, `module` or `conda activate` that works at your terminal is missing. The lines under"
    " `setup` in aboard.yaml are run in a plain `bash` before each rank, and one of them failed.",
    remedy="Try it as a rank would: `ssh NODE bash -c \"'LINE'\"`. For"
    " `module`, put `. /etc/profile.d/modules.sh` (or lmod.sh) first; for conda `."
    " /opt/conda/etc/profile.d/conda.sh`. Most often no line is needed at all: set `python:` to the environment's"
    " own interpreter, as in `python: /opt/venv/bin/python`.",
    fixes={
        "setup": Advice("setup: {lines}    # in aboard.yaml, {where}; {otherwise}"),
        "try": Command("ssh {target} bash -c {line}    # here; as ranks do it; mend it in aboard.yaml"),
    },
    leads_to=UNANSWERED,
)

SLOW_LOGIN = Diagnosis(
    code="reach-slow-login",
    title="a login takes many seconds",
    severity=Severity.WARN,
    symptoms=("ssh takes 10 to 60 seconds to log in", "the launch of one node lags behind the others"),
    explanation="A login has phases: the TCP connection, sshd's greeting, the key exchange, the login, the shell."
    " Each waits for something else. Most often sshd asks a name server that doesn't answer (UseDNS, GSSAPI), or"
    " the home directory is on a file server that doesn't. What this machine's own load may explain, since all"
    " nodes are dialled at once, is taken off by comparing with the other nodes.",
    remedy="`ssh -v NODE true` shows where it stops. For the login phase: `UseDNS no` and `GSSAPIAuthentication no`"
    " in /etc/ssh/sshd_config of the node, then `sudo systemctl reload ssh`; and `time ls -d ~` there for the home"
    " directory. For the TCP phase look at `getent hosts NODE` on this machine. For the shell, look at what"
    " ~/.bashrc does: `conda init` alone may take a second, and more on a network file system.",
    fixes={
        "connect": Command(
            "getent hosts {target}    # here; is the name slow, or the way there?\nping -c 3 {target}    # here"
        ),
        "greeting": Command(
            "uptime    # on {node}; is it overloaded? An sshd behind a proxy or a TCP wrapper asks DNS first\n"
            "sudo systemctl restart ssh    # on {node}; if it is not: sshd itself may be stuck, or short of places"
        ),
        "keys": Command("uptime    # on {node}; is it overloaded? The key exchange is plain work"),
        "login": Command(
            "echo 'UseDNS no' | sudo tee /etc/ssh/sshd_config.d/00-dns.conf    # on {node}\n"
            "sudo systemctl reload ssh    # on {node}\n"
            "time ls -d ~    # on {node}; is the home directory on a dead or slow mount?"
        ),
        "shell": Command(
            "time {python} -c pass    # on {node}; if that is quick, the shell's start-up files (~/.bashrc) are slow"
        ),
    },
)

# The diagnosis of each way not to answer.
UNREACHED: dict[Reason, Diagnosis] = {
    Reason.REFUSED: REFUSED,
    Reason.TIMED_OUT: TIMEOUT,
    Reason.NO_ROUTE: NO_ROUTE,
    Reason.UNRESOLVED: UNRESOLVED,
    Reason.KEY_REFUSED: KEY_REFUSED,
    Reason.HOST_KEY_CHANGED: HOST_KEY_CHANGED,
    Reason.HOST_KEY_UNKNOWN: HOST_KEY_UNKNOWN,
    Reason.DROPPED: DROPPED,
    Reason.NO_PYTHON: NO_PYTHON,
    Reason.OLD_PYTHON: OLD_PYTHON,
    Reason.SHELL_NOISE: SHELL_NOISE,
    Reason.GARBAGE: GARBAGE,
    Reason.WRONG_VERSION: WRONG_VERSION,
    Reason.SILENT: SILENT,
    Reason.NO_SSH: NO_SSH,
    Reason.LOST: LOST,
    Reason.UNKNOWN: UNKNOWN,
}

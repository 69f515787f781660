"""Why ranks don't meet: nodes and ranks that are late, a store or peers that can't be reached."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, Command
from aboard.diagnoses.steps import CHECK, OPEN, PUT_UP

_LOOK = " `aboard why RUN -v` asks the nodes again and tells what was ruled out."
_STORE = {"put-up": PUT_UP, "open": OPEN, "check": CHECK}
_RESOLVE = "getent hosts {host}    # on {nodes:shell}; who is it?"
_OWN_NAME = "getent hosts $(hostname)    # on {nodes:shell}; 127.0.x.x there must go from /etc/hosts"

NODE_LATE = Diagnosis(
    code="init-node-late",
    title="a node is not there yet",
    severity=Severity.WARN,
    symptoms=("Timed out after 601 seconds waiting for clients. 1/2 clients joined.",),
    explanation="No agent could be started on it: its login takes long, or does not answer.",
    remedy="`aboard check NODE --only reach` tells how far a login comes.",
    fixes=CHECK,
)

WORLD = Diagnosis(
    code="init-world",
    title="a script asks for another number of ranks",
    symptoms=(
        "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2",
        "Timed out after 601 seconds waiting for clients.",
    ),
    explanation="init_process_group was given a world_size that is not the number of ranks: the store waits for"
    " the rest.",
    remedy="Leave world_size and rank out: WORLD_SIZE and RANK are set for each rank.",
    fixes="grep -rn --include='*.py' init_process_group .    # here; take world_size= and rank= out: each"
    " rank has WORLD_SIZE and RANK",
)

NAME = Diagnosis(
    code="init-name",
    title="a node can't resolve where rank 0 is",
    symptoms=(
        "The IPv6 network addresses of (…, 29500) cannot be retrieved (gai error: -2 - Name or service not known)",
        "The client socket has timed out after 600000ms while trying to connect to",
    ),
    explanation="MASTER_ADDR is a name that this node does not know.",
    remedy="A line in /etc/hosts of each node: the same run goes on then. Or `--master-address` with an address.",
    fixes={
        "who": Command(_RESOLVE),
        "entry": Command(
            f"{_RESOLVE}\necho {{entry}} | sudo tee -a /etc/hosts"
            "    # on {nodes:shell}; or let the script use MASTER_ADDR as set"
        ),
    },
)

STORE_DROPPED = Diagnosis(
    code="init-store-dropped",
    title="the store of rank 0 does not answer",
    symptoms=("The client socket has timed out after 600000ms while trying to connect to",),
    explanation="Packets to MASTER_ADDR:MASTER_PORT are swallowed by a firewall. torch says the same sentence for"
    " this, for a"
    " refused connection and for an unknown name.",
    remedy="`sudo iptables -I INPUT -p tcp -s NETWORK --dport 1024:65535 -j ACCEPT` on rank 0's node, with the"
    " network of the nodes: ranks try again, and the same run goes on. `aboard check --only network` tells which"
    " node can't reach which.",
    fixes=_STORE,
)

STORE_REJECTED = Diagnosis(
    code="init-store-rejected",
    title="a firewall rejects connections to the store",
    symptoms=("No route to host", "The client socket has timed out after 600000ms while trying to connect to"),
    explanation="A firewall answers connections to MASTER_ADDR:MASTER_PORT with a no.",
    remedy="Open the port on rank 0's node; `aboard check --only network` tells for whom it is closed.",
    fixes=_STORE,
)

STORE_NO_ROUTE = Diagnosis(
    code="init-store-no-route",
    title="a node has no route to rank 0",
    symptoms=("Network is unreachable",),
    explanation="No network of the node leads to the address of rank 0.",
    remedy="`ip route get ADDRESS` on the node; `--master-address` with one that all nodes reach.",
    fixes={
        **_STORE,
        "route": Command("ip route get {target}    # on {nodes:shell}; by which network?"),
    },
)

STORE_REFUSED = Diagnosis(
    code="init-store-refused",
    title="nobody listens where the store should be",
    symptoms=("Connection refused", "The client socket has timed out after 600000ms while trying to connect to"),
    explanation="Rank 0 hosts no store at MASTER_ADDR:MASTER_PORT: its script asks for another one, or for none.",
    remedy="Leave MASTER_ADDR, MASTER_PORT and TORCHELASTIC_USE_AGENT_STORE as they are set.",
    fixes={
        **_STORE,
        "nobody": Command("ss -ltn    # on {node}; what listens\naboard logs {run} --rank 0    # what it did instead"),
    },
)

ELSEWHERE = Diagnosis(
    code="init-elsewhere",
    title="ranks look for the store at different places",
    symptoms=(
        "os.environ['MASTER_PORT'] = '12355'",
        "The client socket has timed out after 600000ms while trying to connect to",
    ),
    explanation="The script sets MASTER_ADDR, MASTER_PORT or init_method by itself, and not to the same on all ranks.",
    remedy="Take the assignment out: every rank has the right ones in its environment.",
    fixes={
        "hosts": Command("sudo sed -i {line} /etc/hosts    # on {nodes:shell}; the first line counts\n{check:shell}"),
        "script": Command(
            "grep -rnE --include='*.py' 'MASTER_ADDR|MASTER_PORT|init_method' .    # here; leave them as they are set"
        ),
    },
)

RANK_TWICE = Diagnosis(
    code="init-rank-twice",
    title="two processes join as the same rank",
    symptoms=("it just hangs at init_process_group", "Duplicate GPU detected : rank 0 and rank 1"),
    explanation="One of them takes the place of a rank that then never comes, and all others wait for that. A"
    " script that works out its rank by itself, or sets RANK, does this.",
    remedy="Take `rank=` out of init_process_group and leave RANK, LOCAL_RANK and WORLD_SIZE as they are set.",
    fixes="grep -rnE --include='*.py' 'init_process_group|RANK' .    # here; take rank= out, and leave"
    " RANK as it is: each rank has its own",
)

LOOPBACK = Diagnosis(
    code="init-loopback",
    title="a node tells its peers to connect to 127.0.0.1",
    symptoms=("connectFullMesh failed", "remote=[127.0.0.1]:41896: Connection refused"),
    explanation="Its own name stands for a loopback address in /etc/hosts, and Gloo takes the address of the name.",
    remedy="Set GLOO_SOCKET_IFNAME, or give the name its real address in /etc/hosts.",
    fixes={
        "interface": Advice(
            "env: {{GLOO_SOCKET_IFNAME: {card}}}    # in aboard.yaml, under cluster:; unless the script sets it"
        ),
        "hosts": Command(_OWN_NAME),
    },
)

RANK_LATE = Diagnosis(
    code="init-rank-late",
    title="a rank has not come to init_process_group",
    symptoms=("it just hangs at init_process_group", "Waiting for clients"),
    explanation="The others wait for it in the store. What it does instead is named, with its line.",
    remedy="Do what takes long after init_process_group, or on all ranks." + _LOOK,
)

IMPORT_SLOW = Diagnosis(
    code="init-import-slow",
    title="a rank takes long to import its modules",
    severity=Severity.WARN,
    symptoms=("import torch takes minutes",),
    explanation="A file system that is slow for thousands of small files, or a node that is busy.",
    remedy="Put the environment on a local disk; `aboard check --only storage` measures it.",
)

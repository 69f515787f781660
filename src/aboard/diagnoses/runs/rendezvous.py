"""Why ranks don't meet: nodes and ranks that are late, a store or peers that can't be reached."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, FixCommand
from aboard.diagnoses.shared_fixes import CHECK_NETWORK, OPEN, PUT_UP

_STORE = {"put-up": FixCommand(PUT_UP), "open": OPEN, "check": CHECK_NETWORK}
_RESOLVE = "getent hosts {host}    # on {nodes:shell}; who is it? or launch with --master-address ADDRESS"
_OWN_NAME = "getent hosts $(hostname)    # on {nodes:shell}; 127.0.x.x there must go from /etc/hosts"

NODE_LATE = Diagnosis(
    code="init-node-late",
    title="a node is not there yet",
    severity=Severity.WARN,
    symptoms=("Timed out after 601 seconds waiting for clients. 1/2 clients joined.",),
    explanation="No agent could be started there: its ssh takes long, or does not answer.",
    fixes="{check:shell aboard check NODE --only reach    # how far a login comes}",
)

WORLD = Diagnosis(
    code="init-world",
    title="a script asks for another number of ranks",
    symptoms=(
        "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2",
        "Timed out after 601 seconds waiting for clients.",
    ),
    explanation="init_process_group was given a world_size that is not the number of ranks: the store waits for ranks"
    " that nobody has started.",
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
    explanation="MASTER_ADDR is a name that this node can't resolve; once it can, the same run goes on.",
    fixes={
        "who": FixCommand(_RESOLVE),
        "entry": FixCommand(
            f"{_RESOLVE}\necho {{entry}} | sudo tee -a /etc/hosts"
            "    # on {nodes:shell}; or let the script use MASTER_ADDR as set"
        ),
    },
)

STORE_DROPPED = Diagnosis(
    code="init-store-dropped",
    title="the store of rank 0 does not answer",
    symptoms=("The client socket has timed out after 600000ms while trying to connect to",),
    explanation="A firewall drops packets to MASTER_ADDR:MASTER_PORT: on the way, on this node or on rank 0's. torch"
    " prints the same for a refused connection and for an unknown name.",
    fixes=_STORE,
)

STORE_REJECTED = Diagnosis(
    code="init-store-rejected",
    title="a firewall rejects connections to the store",
    symptoms=("No route to host", "The client socket has timed out after 600000ms while trying to connect to"),
    explanation="A firewall or a router rejects connections to MASTER_ADDR:MASTER_PORT.",
    fixes=_STORE,
)

STORE_NO_ROUTE = Diagnosis(
    code="init-store-no-route",
    title="a node has no route to rank 0",
    symptoms=("Network is unreachable",),
    explanation="No network of the node leads to the address of rank 0.",
    fixes={
        **_STORE,
        "route": FixCommand(
            "ip route get {target}    # on {nodes:shell}; by which network? else give --master-address"
        ),
    },
)

STORE_REFUSED = Diagnosis(
    code="init-store-refused",
    title="nobody listens where the store should be",
    symptoms=("Connection refused", "The client socket has timed out after 600000ms while trying to connect to"),
    explanation="Rank 0 hosts no store at MASTER_ADDR:MASTER_PORT: its script asks for another one, or for none. It"
    " must leave these variables and TORCHELASTIC_USE_AGENT_STORE as they are set.",
    fixes={
        **_STORE,
        "nobody": FixCommand(
            "ss -ltn    # on {node}; what listens\naboard logs {run} --rank 0    # what it did instead"
        ),
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
    fixes={
        "hosts": FixCommand(
            "sudo sed -i {line} /etc/hosts    # on {nodes:shell}; the first line counts\n" + CHECK_NETWORK.text
        ),
        "script": FixCommand(
            "grep -rnE --include='*.py' 'MASTER_ADDR|MASTER_PORT|init_method' .    # here; leave them as they are set"
        ),
    },
)

RANK_TWICE = Diagnosis(
    code="init-rank-twice",
    title="two processes join as the same rank",
    symptoms=("it just hangs at init_process_group", "Duplicate GPU detected : rank 0 and rank 1"),
    explanation="The script, or a variable that it sets, gives two processes the same rank: another rank then never"
    " comes, and all others wait for it.",
    fixes="grep -rnE --include='*.py' 'init_process_group|RANK' .    # here; take rank= out, and leave"
    " RANK as it is: each rank has its own",
)

LOOPBACK = Diagnosis(
    code="init-loopback",
    title="a node tells its peers to connect to 127.0.0.1",
    symptoms=("connectFullMesh failed", "remote=[127.0.0.1]:41896: Connection refused"),
    explanation="Without GLOO_SOCKET_IFNAME, Gloo uses the address of the node's own name, and /etc/hosts makes that a"
    " loopback address; or the interface that was set is the loopback. No other node can reach it.",
    fixes={
        "interface": Advice(
            "env: {{GLOO_SOCKET_IFNAME: {card}}}    # in aboard.yaml, under cluster:; unless the script sets it"
        ),
        "hosts": FixCommand(_OWN_NAME),
    },
)

RANK_LATE = Diagnosis(
    code="init-rank-late",
    title="a rank has not come to init_process_group",
    symptoms=("it just hangs at init_process_group", "Waiting for clients"),
    explanation="It has not called init_process_group yet, and the others wait for it in the store.",
    remedy="Move slow work behind init_process_group, or do it on all ranks. `aboard why RUN -v` shows where it is.",
)

IMPORT_SLOW = Diagnosis(
    code="init-import-slow",
    title="a rank takes long to import its modules",
    severity=Severity.WARN,
    symptoms=("import torch takes minutes",),
    explanation="A file system that is slow for thousands of small files, or a busy node, makes imports take long.",
    remedy="Put the environment on a local disk; `aboard check --only storage` measures it.",
)

"""`torchrun …` and its older names, read as torch 2.13's distributed/run.py and distributed/launch.py read them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from aboard.core.paste.flags import Flag, Takes, help_of, obeyed, ours, refused, switch
from aboard.core.paste.master import Master, endpoint, master
from aboard.core.paste.pasted import Around, Pasted
from aboard.core.paste.script import program
from aboard.core.paste.typed import Grammar, Typed, read
from aboard.core.request import Request
from aboard.core.words import visible
from aboard.diagnoses import Fix, InputError, Problem, paste

NAME = "torchrun"
NO_RENDEZVOUS = "is not needed: Aboard assigns the ranks, so there is nothing to agree upon"
OWN_LOGS = "is not needed: each rank has a log of its own in the run's directory (aboard logs --rank N)"
GREPPED = "is not needed: aboard logs --grep PATTERN finds lines in the logs of all ranks"
NO_ROLES = "is not passed on: ROLE_NAME is 'default' for every rank"
NO_RESTARTS = "a failed run is not restarted yet; it ends, and says why"

_PER_SLOT = frozenset({"gpu", "auto", "xpu"})


def restarts(*names: str) -> Flag:
    return refused(*names, says=NO_RESTARTS, fix=paste.FLAG.fix("no-restarts", flag=names[0]), fine=("0",))


FLAGS = (
    help_of(NAME),
    obeyed("--nnodes"),
    obeyed("--nproc-per-node"),
    obeyed("--rdzv-backend"),
    obeyed("--rdzv-endpoint"),
    obeyed("--master-addr"),
    obeyed("--master-port", takes=Takes.NUMBER),
    ours("--role", says=NO_ROLES, fine=("default",)),
    obeyed("--numa-binding"),
    switch("--standalone"),
    switch("--module", "-m"),
    switch("--no-python"),
    ours("--node-rank", says="is not needed: each node is told its own"),
    ours("--rdzv-id", says=NO_RENDEZVOUS),
    ours("--rdzv-conf", says=NO_RENDEZVOUS),
    ours("--local-addr", says="is not needed: nodes are told addresses at which they were seen to answer"),
    ours("--monitor-interval", says="is not needed: a rank's end is seen when it happens"),
    ours("--start-method", says="is not needed: a script is a process of its own in any case"),
    ours("--run-path", takes=Takes.NOTHING, says="is not needed: a script is a process of its own in any case"),
    ours("--log-dir", says=OWN_LOGS),
    ours("--redirects", "-r", says=OWN_LOGS),
    ours("--tee", "-t", says=OWN_LOGS),
    ours("--local-ranks-filter", says="is not needed: aboard logs --rank N shows the ranks that you want to see"),
    ours("--duplicate-stdout-filters", says=GREPPED),
    ours("--duplicate-stderr-filters", says=GREPPED),
    restarts("--max-restarts"),
    refused(
        "--event-log-handler",
        says="handlers of torchrun's own events are not called",
        fix=paste.FLAG.fix("events"),
        fine=("null",),
    ),
    refused("--logs-specs", says="a log plug-in of torchrun is not called"),
    refused(
        "--signals-to-handle",
        says="Aboard passes on SIGTERM and SIGINT, and no others",
        fine=("sigterm,sigint,sighup,sigquit", "sigterm,sigint", "sigterm", "sigint"),
    ),
    refused("--shutdown-timeout", says="how long ranks have to end after a SIGTERM is Aboard's own"),
    refused(
        "--virtual-local-rank", takes=Takes.NOTHING, says="LOCAL_RANK is the rank's number on its node, and stays so"
    ),
)
GRAMMAR = Grammar(launcher=NAME, flags=FLAGS, either_dash=True)
LAUNCH_GRAMMAR = Grammar(launcher="torch.distributed.launch", flags=(*FLAGS, switch("--use-env")), either_dash=True)


def from_torchrun(words: Sequence[str], around: Around) -> Pasted:
    """What `torchrun WORDS` asks for; without --nproc-per-node that is one rank on each node, as in torchrun."""
    return _pasted(read(GRAMMAR, [*_from_environ(around.environ), *words]))


def from_torch_launch(words: Sequence[str], around: Around) -> Pasted:
    """The older `python -m torch.distributed.launch`, which also tells the script its local rank."""
    typed = read(LAUNCH_GRAMMAR, [*_from_environ(around.environ), *words])
    pasted = _pasted(typed)
    if typed.on("use_env"):
        return pasted
    if typed.on("no_python"):
        seen = "--no-python also needs --use-env, as in torch.distributed.launch"
        raise InputError(paste.FLAG, [Problem(where=typed.launcher, seen=seen, fix=paste.FLAG.fix("use-env"))])
    # With a dash since torch 2.0.
    told = replace(pasted.request.program, local_rank="--local-rank")
    note = "The script is told --local-rank=N, as torch.distributed.launch does since torch 2.0."
    return replace(pasted, request=replace(pasted.request, program=told), notes=(*pasted.notes, note))


def _from_environ(environ: Mapping[str, str]) -> Iterator[str]:
    """A flag that isn't typed is taken from PET_ and its name, as torchrun does (Kubeflow sets these)."""
    for flag in FLAGS:
        value = environ.get(f"PET_{flag.dest.upper()}")
        if value and flag.takes is not Takes.NOTHING:
            yield f"{flag.names[0]}={value}"
        elif value and value != "0":
            yield flag.names[0]


def _pasted(typed: Typed) -> Pasted:
    nodes = _nodes(typed)
    ranks, notes = _ranks(typed)
    place = _master(typed)
    return Pasted(
        launcher=typed.launcher,
        request=Request(
            program=program(typed),
            ranks=ranks,
            nodes=nodes,
            master_address=place.address,
            master_port=place.port,
            bind=_bound(typed),
        ),
        notes=(*typed.notes, *notes, *place.notes),
    )


def _nodes(typed: Typed) -> int | None:
    """A range of nodes can be obeyed only if it is no range."""
    text = typed.text("nnodes")
    if text is None:
        return 1 if typed.on("standalone") else None
    least, colon, most = text.partition(":")
    if not least.isdecimal() or (colon and not most.isdecimal()) or int(least) < 1:
        raise _problem(typed, "--nnodes", f"'{visible(text)}' is no number of nodes", paste.FLAG.fix("nnodes"))
    if colon and int(least) != int(most):
        seen = f"{text} lets the number of nodes change, and Aboard refuses a smaller world than asked for"
        raise _problem(typed, "--nnodes", seen, paste.FLAG.fix("nnodes-range", most=most, least=least))
    if typed.on("standalone") and int(least) > 1:
        seen = f"it is for one node, and --nnodes asks for {least}"
        raise _problem(typed, "--standalone", seen, paste.FLAG.fix("leave-out", flag="--standalone"))
    return int(least)


def _ranks(typed: Typed) -> tuple[int | None, tuple[str, ...]]:
    text = typed.text("nproc_per_node")
    if text is None:
        return 1, ("--nproc-per-node is not given: each node starts one rank, as torchrun does.",)
    if text in _PER_SLOT:
        return None, (f"--nproc-per-node {text}: each node starts one rank for each of its slots.",)
    if text.isdecimal() and int(text) > 0:
        return int(text), ()
    if text == "cpu":
        seen = "cpu asks for a rank on each core, and how many cores each node has is not known here"
        raise _problem(typed, "--nproc-per-node", seen, paste.FLAG.fix("ranks-of-cpus"))
    seen = f"'{visible(text)}' is no number of ranks"
    raise _problem(typed, "--nproc-per-node", seen, paste.FLAG.fix("ranks"))


def _master(typed: Typed) -> Master:
    """The c10d endpoint is on node 0 by convention; that of etcd is a server which nobody needs here."""
    backend = typed.text("rdzv_backend") or "static"
    given = typed.text("rdzv_endpoint")
    notes = (f"--rdzv-backend {visible(backend)} {NO_RENDEZVOUS}.",) if typed.text("rdzv_backend") else ()
    if typed.on("standalone") or (given and backend.startswith("etcd")):
        return Master(notes=notes)
    if given:
        place = endpoint(given, where="--rdzv-endpoint")
        return replace(place, notes=(*notes, f"--rdzv-endpoint {visible(given)} is where rank 0 listens."))
    port = typed.values.get("master_port")
    place = master(typed.text("master_addr"), port if isinstance(port, int) else None, where="--master-addr")
    return replace(place, notes=notes)


def _bound(typed: Typed) -> bool:
    mode = typed.text("numa_binding")
    if mode in {None, "node"}:
        return mode is not None
    seen = f"'{visible(mode)}' can't be had: ranks are bound to the cores of their NUMA node, or not at all"
    raise _problem(typed, "--numa-binding", seen, paste.FLAG.fix("numa"))


def _problem(typed: Typed, flag: str, seen: str, fix: Fix) -> InputError:
    return InputError(paste.FLAG, [Problem(where=f"{typed.launcher} {flag}", seen=seen, fix=fix)])

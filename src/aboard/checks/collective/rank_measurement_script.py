"""The second half of what a rank of the exercise runs: pairs of nodes, then all-reduce and all-gather by size.

Bandwidths are those of nccl-tests (doc/PERFORMANCE.md there): the algorithm's is size / time, the bus's is that times
2(n-1)/n for an all-reduce and (n-1)/n for an all-gather, whose size is what each rank has at its end.
"""

SOURCE = r"""
KEEP = (
    "NCCL WARN", "NCCL version", "Using network", "GPU Direct RDMA", " via ", "NET/Plugin", "NCCL_NET",
    "NCCL_TOPO_FILE", "topology file", "Bootstrap", "NET plugin", "NET/", "NVLS multicast", "Connected all", "Init ",
)

def log_lines():
    # Of NCCL's log only what the grammar knows, each kind of line a few times: it is long on many channels.
    folder, kept, kinds = TASK.get("log"), [], {}
    if not folder:
        return kept
    try:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), errors="replace") as file:
                for line in file:
                    kind = next((word for word in KEEP if word in line), None)
                    if kind is not None:
                        kinds[kind] = kinds.get(kind, 0) + 1
                        if kinds[kind] <= 40 and len(kept) < 300:
                            kept.append(line.rstrip("\n")[:500])
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass
    return kept

def main():
    # The last resort, when something holds Python's lock: the watch can't run then.
    faulthandler.dump_traceback_later(TASK["within"], exit=True)
    watch = Watch()
    for name, value in TASK["defaults"].items():
        os.environ.setdefault(name, value)
    try:
        watch.meet()
        watch.enter("import", TASK["load"])
        load(watch)
    except BaseException as error:
        told = "%s: %s" % (type(error).__name__, str(error).strip().rpartition("\n")[2] or error)
        watch.finish(error=told[:500], stack=traceback.format_exc().splitlines()[-8:])

def load(watch):
    import torch
    import torch.distributed as dist
    from datetime import timedelta

    local, backend = TASK["local"], TASK["backend"]
    if backend == "nccl":
        if not torch.cuda.is_available():
            raise RuntimeError("torch finds no GPU that works, although the driver has some")
        torch.cuda.set_device(local)
        TASK["log"] = folder = tempfile.mkdtemp(prefix="aboard-nccl-")
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,BOOTSTRAP,ENV,GRAPH")
        os.environ["NCCL_DEBUG_FILE"] = os.path.join(folder, "%h.%p")
    torch.set_num_threads(1)
    watch.told.update(torch=torch.__version__, backend=backend)
    if backend == "nccl":
        watch.told["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    patience = timedelta(seconds=600)
    store = dist.TCPStore(TASK["address"], 0, WORLD, True, patience, False) if RANK == 0 else None
    # Later than the roster's own deadline: who is ready must not be taken for the one that isn't.
    watch.enter("ready", TASK["meet"] + TASK["load"] + TASK["stall"])
    watch.say(ready=store.port if store else 0)
    watch.may_go.wait()
    watch.enter("store", TASK["connect"])
    store = store or dist.TCPStore(TASK["address"], watch.store, WORLD, False, patience, False)
    watch.enter("connect", TASK["connect"])
    dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD, timeout=patience)
    Measure(torch, dist, watch, backend).all()
    watch.enter("done", TASK["stall"])
    watch.say(done=True)
    watch.may_end.wait(TASK["stall"])
    watch.finish()

class Measure:
    def __init__(self, torch, dist, watch, backend):
        self.torch, self.dist, self.watch = torch, dist, watch
        self.nccl = backend == "nccl"
        self.device = "cuda" if self.nccl else "cpu"
        self.stall = TASK["stall"] * (4 if self.nccl else 1)
        self.rows, self.wrong, self.pairs = [], [], {}

    def all(self):
        self.watch.told.update(rows=self.rows, wrong=self.wrong, pairs=self.pairs)
        # The first collective makes the connections.
        self.beat("connect", TASK["connect"] * (4 if self.nccl else 1))
        self.agree([0.0])
        if "pairs" in TASK["what"]:
            self.partners()
        for name in ("all_reduce", "all_gather"):
            began = NOW()
            for size in TASK["sizes"]:
                if not self.row(name, size, began):
                    break

    def beat(self, phase, within=None):
        self.watch.enter(phase, within or self.stall)

    def agree(self, values):
        # The largest of each, the same on all ranks: how often to repeat must not differ.
        both = self.torch.tensor(values, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(both, op=self.dist.ReduceOp.MAX)
        return both.tolist()

    def sync(self):
        if self.nccl:
            self.torch.cuda.synchronize()

    def row(self, name, size, began):
        self.beat(name)
        action, check, size = getattr(self, name)(size)
        first = NOW()
        action()
        self.sync()
        slowest = self.agree([NOW() - first])[0]
        sources = check()
        if sources is not None:
            self.wrong.append([name, size, sources])
        rounds = max(1, min(TASK["rounds"], int(TASK["seconds"] / len(TASK["sizes"]) / max(slowest, 1e-5))))
        self.beat(name)
        self.agree([0.0])
        first = NOW()
        for _ in range(rounds):
            action()
        self.sync()
        took, spent = self.agree([(NOW() - first) / rounds, NOW() - began])
        self.rows.append([name, size, rounds, took])
        # The next is four times as large: once to warm up, once to measure.
        return spent + 8 * took < TASK["most"]

    def pattern(self, count):
        return (self.torch.arange(count, device=self.device) % 97).to(self.torch.float32)

    def all_reduce(self, size):
        torch, count = self.torch, max(1, size // 4)
        base = self.pattern(count)
        data = base + (RANK + 1)
        wanted = base * WORLD + WORLD * (WORLD + 1) // 2

        def check():
            right = bool(torch.equal(data, wanted))
            data.zero_()
            return None if right else []

        return lambda: self.dist.all_reduce(data), check, 4 * count

    def all_gather(self, size):
        torch, count = self.torch, max(1, size // 4 // WORLD)
        base = self.pattern(count)
        data = base + (RANK + 1)
        out = torch.zeros(count * WORLD, dtype=torch.float32, device=self.device)
        parts = list(out.chunk(WORLD))

        def check():
            wrong = [rank for rank, part in enumerate(parts) if not torch.equal(part, base + (rank + 1))]
            return wrong or None

        def action():
            if self.nccl:
                self.dist.all_gather_into_tensor(out, data)
            else:
                self.dist.all_gather(parts, data)

        return action, check, 4 * count * WORLD

    def partners(self):
        # Each node with each other while they are few, else with those that differ in one bit of their number.
        for game in TASK["games"]:
            self.beat("pairs")
            other = next((b if a == RANK else a for a, b in game if RANK in (a, b)), None)
            if other is not None:
                self.watch.told["partner"] = other
                self.pairs[other] = self.pair(other)
                self.watch.told.pop("partner")
            self.beat("pairs")
            self.agree([0.0])

    def pair(self, other):
        torch, dist = self.torch, self.dist
        data = torch.zeros(TASK["pair"] // 4, device=self.device)
        into = torch.empty_like(data)
        few = torch.zeros(1, dtype=torch.int64, device=self.device)

        def swap():
            first = NOW()
            ops = [dist.P2POp(dist.isend, data, other), dist.P2POp(dist.irecv, into, other)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            self.sync()
            return NOW() - first

        took = swap()
        # One of the two decides how often, and tells.
        if RANK < other:
            few.fill_(1 if took > 0.1 else 5)
            dist.send(few, other)
        else:
            dist.recv(few, other)
        best = min(swap() for _ in range(int(few)))
        return TASK["pair"] * 8 / 1e6 / max(best, 1e-6)

main()
"""

"""A small Ray program that ends well: tasks, an actor that steps, and a remote warning."""

# Ray is not installed where the types are checked.
# mypy: ignore-errors
import logging

import ray


@ray.remote
def prepare(shard: int) -> int:
    logging.getLogger("data").warning("shard %s: 2 rows without text are skipped (errors: 0)", shard)
    return shard * 100


@ray.remote
class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank, self.weight = rank, 0.0

    def step(self, step: int, rows: int) -> float:
        self.weight += 0.1 * (1 - self.weight)
        if step % 5 == 0:
            print(f"rank {self.rank} step {step} loss {1 - self.weight:.4f} rows {rows} failed 0", flush=True)
        return self.weight


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False)
    rows = sum(ray.get([prepare.remote(shard) for shard in range(4)]))
    trainers = [Trainer.remote(rank) for rank in range(2)]
    for step in range(1, 31):
        weights = ray.get([trainer.step.remote(step, rows) for trainer in trainers])
    print(f"done: weight {weights[0]:.4f}")
    ray.shutdown()


if __name__ == "__main__":
    main()

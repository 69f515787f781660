"""Fixtures of the tests that train: ranks that stay alive, tiny models and prepared data."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import FAMILIES, MAX_LENGTH, dropping_model, tiny_data, tiny_model
from train_crew import Crew

from aboard.core.plan.training_settings import Training


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Up to four ranks, started once."""
    made = Crew()
    yield made
    made.close()


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    """A model of each family, and data packed, padded and for validation; read-only for all tests."""
    folder = tmp_path_factory.mktemp("shelf")
    for family in FAMILIES:
        crew.run(1, tiny_model, folder / family, family)
    crew.run(1, dropping_model, folder / "dropout")
    tiny_data(folder / "packed", "packed")
    tiny_data(folder / "padded", "padded")
    tiny_data(folder / "validation", "packed", documents=40, name="validation", seed=2)
    return folder


@pytest.fixture
def settled(shelf: Path, tmp_path: Path) -> Callable[..., Training]:
    """A training of 20 steps in float32 that logs each of them; whatever is named differs."""

    def made(family: str = "llama", packing: str = "packed", **changed: Any) -> Training:
        usual: dict[str, Any] = {
            "model": str(shelf / family),
            "data": (tiny_data(shelf / packing, packing),),  # type: ignore[arg-type]
            "output_dir": str(tmp_path / "out"),
            "max_length": MAX_LENGTH,
            "max_steps": 20,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "logging_steps": 1,
            "bf16": False,
            "sharding": "none",
            # Its scores are capped, which sdpa can't do.
            "attn_implementation": "eager" if family == "gemma2" else "auto",
        }
        return Training(**{**usual, **changed})

    return made

"""The check for the dependencies of the extra `train`."""

from importlib.util import find_spec

from aboard.diagnoses import AboardError
from aboard.trainer.diagnoses import data

_NEEDED = ("numpy", "pyarrow", "datasets", "transformers")


def require_train_extra(what: str) -> None:
    """Raises if the extra `train` is not installed; torch itself may be on the nodes only."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        seen = f"{what} needs {' and '.join(missing)}, which the base install does not include"
        raise AboardError(data.EXTRA, seen)

"""What the light install doesn't bring, named before it is imported."""

from importlib.util import find_spec

from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import data

_NEEDED = ("numpy", "pyarrow", "datasets", "transformers")


def require_train_extra(what: str) -> None:
    """Raises where the extra `train` isn't installed; torch itself may be on the nodes only."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        seen = f"{what} needs {' and '.join(missing)}, which the light install doesn't bring"
        raise AboardError(data.EXTRA, seen)

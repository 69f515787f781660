"""Diagnoses of `aboard sync --env`: an environment that can't be packed on the head or recreated on a node."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake

NONE = Mistake(
    code="env-none",
    fixes="python3 -m venv ~/venv && . ~/venv/bin/activate    # then install your packages and run the command again",
)

CONDA = Diagnosis(
    code="env-conda",
    title="a conda environment can't be recreated from wheels",
    symptoms=("is a conda environment",),
    explanation="conda packages contain libraries and programs with paths of their own, which wheels can't hold. Pack"
    " the environment with conda-pack and unpack it at the same path on every node, or put it on a disk that all nodes"
    " share.",
    fixes="conda-pack -p {prefix} -o env.tar.gz    # then unpack it at {prefix} on every node and run"
    " bin/conda-unpack there\n"
    "python3 -m venv ~/venv && . ~/venv/bin/activate    # or use a virtual environment, which sync --env recreates",
)

PACKAGE = Diagnosis(
    code="env-package",
    title="a package of the environment can't be packed into a wheel",
    symptoms=("no RECORD lists the files of", "no package was found for the editable installation of"),
    explanation="Wheels are packed from the files that a package's RECORD lists. Packages that `setup.py install`,"
    " `setup.py develop` or a system's package manager installed have none. An editable installation must lead to at"
    " least one package directory or module.",
    remedy="Install the package again with pip, which writes a RECORD.",
    fixes={
        "reinstall": "{python} -m pip install --force-reinstall --no-deps {names:words}",
        "editable": "{python} -m pip install --force-reinstall --no-deps {projects:words}",
    },
)

NO_PYTHON = Diagnosis(
    code="env-no-python",
    title="a node does not have the environment's Python version",
    symptoms=("has no Python 3.11",),
    explanation="A virtual environment needs its base interpreter. The minor version must be the same as on the head,"
    " since packages are compiled for it.",
    fixes={
        "copy": "aboard sync {base}    # copies the head's interpreter to the same path on the nodes",
        "install": "sudo apt install {packages:words}    # on {node}; or use its own package manager",
    },
)

PLATFORM = Diagnosis(
    code="env-platform",
    title="a node can't run the environment's compiled packages",
    symptoms=("has glibc", "is aarch64, but the head is x86_64"),
    explanation="Compiled packages run only on the processor architecture and the Python build that they were made for,"
    " and need at least the glibc that their wheel names.",
    fixes="aboard sync --env --exclude {node}    # and install the packages there by hand",
)

PATH = Diagnosis(
    code="env-path",
    title="something else is at the environment's path on a node",
    symptoms=("exists, but is not a virtual environment", "is a virtual environment of Python 3.9"),
    explanation="The environment must have the same path on every node. Aboard replaces an environment that it created,"
    " and updates any environment of the same Python version, but does not delete anything else.",
    fixes="mv {path} {path}.old    # on {node}; then run the command again",
)

DENIED = Diagnosis(
    code="env-denied",
    title="the environment's path can't be written on a node",
    symptoms=("can't be written: no write permission in",),
    explanation="The environment has the same path on every node, or the same path below your home on the node. Here"
    " your user there may not write to it. `--env-path` names another path on the nodes, and ranks use that one.",
    fixes="aboard sync --env --env-path {other}",
)

CREATE = Diagnosis(
    code="env-create",
    title="a virtual environment can't be created on a node",
    symptoms=("python3 -m venv failed", "No module named venv"),
    explanation="`python -m venv --without-pip` failed on this node. Some systems have the venv module in a package of"
    " its own.",
    fixes="{python} -m venv --without-pip {path}    # on {node}; shows the error. Debian, Ubuntu: sudo apt install"
    " python3-venv",
)

DIFFERS = Diagnosis(
    code="env-differs",
    title="a node's environment differs from the head's after the installation",
    symptoms=("differs from the head after the installation",),
    explanation="Aboard compares every package by version and files after the installation. Something else changes the"
    " environment on this node, or a package there was installed without a RECORD and can't be removed.",
    fixes="mv {path} {path}.old    # on {node}; then run the command again",
)

BASE = Diagnosis(
    code="env-base",
    title="the system's packages differ between the head and a node",
    symptoms=("base interpreter has no torch",),
    explanation="The environment was created with --system-site-packages, so it also uses packages of its base"
    " interpreter. Those are not copied.",
    fixes="{python} -m pip install --ignore-installed {names:words}    # on the head, in the environment;"
    " then run the command again",
)

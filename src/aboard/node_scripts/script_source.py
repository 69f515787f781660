"""The source of the scripts in this package, as the head sends it to nodes."""

from functools import cache
from importlib import resources

# As Python 3.11's -P: a torch.py in the working directory, which may be a cloned repository, is not what ranks import.
# The script is the next word, since a line before it would hide its own `from __future__`.
RUN_NEXT_WORD = "import sys; sys.path[:] = [folder for folder in sys.path if folder]; exec(sys.argv.pop(1))"


@cache
def read_script(name: str) -> str:
    """The source of a script that needs no other module of ours."""
    return resources.files("aboard.node_scripts").joinpath(f"{name}.py").read_text("utf-8")


@cache
def bundle_scripts(main: str, *others: str) -> str:
    """One source for a script and the modules of this package that it imports."""
    importer = resources.files("aboard.agent").joinpath("bundle_importer.py").read_text("utf-8")
    packages = {"aboard": "", "aboard.node_scripts": ""}
    sources = {**packages, **{f"aboard.node_scripts.{name}": read_script(name) for name in (main, *others)}}
    install = f"sys.meta_path.insert(0, BundleImporter({sources!r}, {set(packages)!r}, {{}}, b''))"
    return f"{importer}\n{install}\nfrom aboard.node_scripts.{main} import main\nmain()\n"

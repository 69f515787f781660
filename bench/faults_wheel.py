"""Builds an empty wheel, for the package index from which a missing module is installed."""

import io
import zipfile

# A module that the rank's script imports and no node has.
MISSING = "flash_attention_kernels-1.0-py3-none-any.whl"


def build_empty_wheel(name: str) -> bytes:
    """A valid wheel without content: PEP 427."""
    package, version = name.split("-")[:2]
    about = f"{package}-{version}.dist-info"
    parts = {
        f"{package}.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    parts[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*parts, f"{about}/RECORD"])
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as packed:
        for path, text in parts.items():
            packed.writestr(path, text)
    return whole.getvalue()

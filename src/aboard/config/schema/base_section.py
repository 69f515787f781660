"""The base class of all sections of aboard.yaml."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Refuses unknown keys and converts nothing: `slots: "8"` is an error.

    The string after a field is its description in the JSON schema. It is only read to print the schema: pydantic's own
    `use_attribute_docstrings` reads all sources at every start, which takes 40 ms.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

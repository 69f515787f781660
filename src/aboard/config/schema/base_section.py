"""What every section of aboard.yaml has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are errors and nothing is converted: `slots: "8"` is a mistake to show, not to guess about.

    A text behind a field describes it in the JSON schema. It is read when the schema is asked for: pydantic's own
    `use_attribute_docstrings` reads all sources at every start, which takes 40 ms.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

"""What every section of aboard.yaml has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are errors and nothing is converted: `slots: "8"` is a mistake to show, not to guess about."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

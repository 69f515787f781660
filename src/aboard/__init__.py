"""Every node aboard, then the train leaves."""

__version__ = "0.1.0"

"""Why a run ended."""

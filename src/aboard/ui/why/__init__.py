"""Views of `aboard why`: verdicts, diagnoses, replays."""

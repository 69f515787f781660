"""What `aboard why` shows: verdicts, diagnosis pages, replays."""

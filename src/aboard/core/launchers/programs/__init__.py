"""Programs that build a launcher's command and start it: shell scripts, and gpt-neox's deepy.py."""

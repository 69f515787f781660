"""The border: from what a user wrote (names, hostfile, aboard.yaml) to values that the inside trusts."""

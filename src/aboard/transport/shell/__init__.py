"""Plain shells on machines, for what comes before any agent: host keys, first logins, files in ~/.ssh."""

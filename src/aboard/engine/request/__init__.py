"""What a launch was asked for: nodes, options and command as typed, and the launch that they make."""

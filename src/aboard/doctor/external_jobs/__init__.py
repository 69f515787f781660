"""Jobs that Aboard did not launch: what holds them up."""

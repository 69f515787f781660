"""`accelerate launch`: its flags, its configuration file, and the environment that it gives to ranks."""

"""What the server, the network and the environments may do to a training run, and what must come of it."""

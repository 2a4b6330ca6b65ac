"""The vocabulary of the protocol, with no IO: what a frame says, never how it travels."""

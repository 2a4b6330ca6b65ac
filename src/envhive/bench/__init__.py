"""The scaling lab: what a server of environments can bear, measured and drawn."""

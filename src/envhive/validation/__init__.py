"""Everything that `envhive validate` checks: a folder as it lies there, the contract, and a live server."""

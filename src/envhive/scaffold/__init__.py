"""Making the folder of a new environment, for `envhive init`."""

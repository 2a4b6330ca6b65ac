"""`python -m envhive` is the `envhive` command."""

from envhive.cli import main

main(prog_name="envhive")

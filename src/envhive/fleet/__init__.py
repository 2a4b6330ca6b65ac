"""Several servers behind one address."""

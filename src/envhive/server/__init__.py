"""Serving environments: sessions, the two WebSocket lanes, and the HTTP endpoints."""

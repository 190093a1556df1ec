"""Schemas of records: parsed, compared, and values between bytes and Arrow columns; no socket, thread or clock."""

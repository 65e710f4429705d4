"""Maintenance scripts; not shipped."""

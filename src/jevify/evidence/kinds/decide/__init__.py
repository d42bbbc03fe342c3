"""Whole decisions: candidates beside a baseline on the same requests."""

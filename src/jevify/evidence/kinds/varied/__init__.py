"""Requests of varied length in random order: do graphs get replayed, at what memory, without growth?"""

"""Plots of stored runs as SVG; drawing needs the extra `report`."""

"""Formats of single data sets: COCO, DAVIS, revisited Oxford and Paris, SPair-71k."""

"""Failures of nodes and of the links between them that are found while connecting, not by a subject of the doctor."""

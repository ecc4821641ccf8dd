"""Delayed messages in this program: four roles, their links, words of the command, routes over HTTP."""

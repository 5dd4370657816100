"""The commands, each with those of its kind in a module that is loaded when one is typed."""

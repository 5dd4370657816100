"""Does what a plan claims hold? Stated figures against arithmetic, devices and the bill."""

"""Stands in for the build, of which there is one already."""

print("REHEARSAL without a build")

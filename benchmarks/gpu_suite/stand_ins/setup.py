"""Stands in for the build: says what is there already."""

from ringcomm import _build_info

print("REHEARSAL without a build; what is there:")
print(_build_info.SUMMARY)

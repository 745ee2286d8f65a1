"""Importing this makes ``import mori`` give this package in the process, whatever is installed. A program imports it first."""

from anabranch.compat._install import install

install("mori", replace=True)

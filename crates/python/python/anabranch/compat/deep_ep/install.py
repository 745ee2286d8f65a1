"""Importing this makes ``import deep_ep`` give this package in the process, whatever is installed. A program imports it first."""

from anabranch.compat._install import install

install("deep_ep", replace=True)

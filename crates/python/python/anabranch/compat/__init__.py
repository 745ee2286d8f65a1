"""Modules with the interfaces of other libraries, over this one."""

//! Checks of the repository itself. They are tests, in `tests/`; the library is empty.

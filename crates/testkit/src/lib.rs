//! Rank runners and checks for tests.

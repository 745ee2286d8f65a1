//! The driver of ConnectX over a NIC that takes commands and moves nothing: what it is told, who opens it, and what failures read like.

mod commands;
mod failures;
#[path = "../../tests/mlx5/fake.rs"]
mod fake;
mod machine;

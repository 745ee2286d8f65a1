//! Queues of NICs in kernels, on the host runtime: what they write, byte by byte, and what they do with a NIC that reads it.

mod asked;
mod bench;
mod code;
mod consumer;
mod golden;
mod random;
mod together;

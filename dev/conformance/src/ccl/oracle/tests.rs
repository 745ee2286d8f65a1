//! Worked examples, and wrong answers that the oracle must notice.

mod arithmetic;
mod inputs;
mod wrong;

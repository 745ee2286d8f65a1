//! What a way of moving bytes must offer: the trait, plain data, errors.

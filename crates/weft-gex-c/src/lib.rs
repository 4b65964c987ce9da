//! The C interface of weft-gex. Its headers are in `include/`.

pub mod tools;

//! The functions of gasnet_tools.h that are not inline: the environment, numbers as text, the machine, clocks, errors.
//!
//! They need no job: each works before the job starts and after it ends. The only state is whether this process prints
//! what it reads from the environment ([`speak`]), and the client's function for backtraces.

mod clock;
mod env;
mod fatal;
mod format;
mod machine;
mod number;
mod text;

pub use env::speak;

//! `libweft-gex.so`: a C library for partitioned global address spaces, compatible with the GASNet-EX API.
//!
//! Place in the data flow: clients such as UPC++ call the functions of the headers in `include/`. Each function here
//! checks its arguments, and passes the call to `weft-gex`. The headers make the variants with numbers of arguments.
//!
//! Handles of the client are addresses of objects of weft-gex (`handles`). Exported names begin with `gex_`,
//! `gasnet_` or `gasnett_`, and those of extensions with `gexw_`. A panic ends the process: it does not cross the C
//! boundary.
//!
//! Errors: calls of the client's that can go wrong in a correct program return a code of the API. Others end the job
//! with a message that names the cause and the remedy.

mod ad;
mod address;
mod after;
mod am;
mod barrier;
mod client;
mod coll;
mod endpoint;
mod event;
mod handles;
mod kept;
mod kinds;
mod prepare;
mod rma;
mod segment;
mod signal;
mod system;
mod team;
pub mod tools;
mod vis;

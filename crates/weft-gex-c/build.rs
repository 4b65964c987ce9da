//! Names the shared library, so that programs find it under the name that it is installed with.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweft-gex.so");
    println!("cargo::rerun-if-changed=build.rs");
}

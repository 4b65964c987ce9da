//! Makes the library smaller by 2 %: the linker keeps one copy of functions with the same code.
//!
//! Place in the data flow: none, it runs before the library is linked. Only lld has the option. rustc links with lld
//! on x86-64 Linux from 1.90 on, unless another linker or other flags are chosen.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let chosen = var("RUSTC_LINKER").is_ok() || var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| !flags.is_empty());
    let is = |name: &str, value: &str| var(name).is_ok_and(|found| found == value);
    let usual = is("TARGET", "x86_64-unknown-linux-gnu") && is("HOST", "x86_64-unknown-linux-gnu");
    if usual && !chosen && minor_version() >= Some(90) {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--icf=all");
    }
}

/// The N of rustc 1.N.
fn minor_version() -> Option<u32> {
    let said = Command::new(var("RUSTC").ok()?).arg("--version").output().ok()?;
    String::from_utf8(said.stdout).ok()?.split('.').nth(1)?.parse().ok()
}

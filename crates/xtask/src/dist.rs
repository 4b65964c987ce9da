//! `cargo xtask dist`: lays the built provider out as libfabric wants to find it.
//!
//! libfabric loads files whose names end in `fi.so`; cargo calls the library `libweft_fi.so`. The task copies
//! it to `<target>/dist/libweft-fi.so`, with the `weft` binary beside it when that has been built.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Options of `cargo xtask dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The cargo profile whose output is taken.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Where to put the files [default: `dist` in the target directory].
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Runs the task.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = target_dir();
    let folder = if args.profile == "dev" { "debug" } else { &args.profile };
    let built = target.join(folder);
    let out = args.out.clone().unwrap_or_else(|| target.join("dist"));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let library = built.join("libweft_fi.so");
    if !library.exists() {
        bail!("{} is missing: run `cargo build --profile {}` first", library.display(), args.profile);
    }
    install(&library, &out.join("libweft-fi.so"))?;
    let binary = built.join("weft");
    if binary.exists() {
        install(&binary, &out.join("weft"))?;
    }
    Ok(())
}

/// Copies under a temporary name and renames, so that a process that has the old file mapped keeps it whole.
fn install(from: &Path, to: &Path) -> anyhow::Result<()> {
    let temporary = to.with_extension("new");
    std::fs::copy(from, &temporary).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::rename(&temporary, to).with_context(|| format!("cannot replace {}", to.display()))?;
    println!("{}", to.display());
    Ok(())
}

/// Cargo's target directory.
fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}

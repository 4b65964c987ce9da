//! `weft-lab sim` from its command line.

#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;

fn weft(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(arguments.split(' ')).output().unwrap()
}

fn json(arguments: &str) -> Value {
    let output = weft(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn runs_are_counted_and_repeat() {
    let command = "sim faults --seed 5 --seeds 6 --minutes 0.2 --json";
    let [first, second] = [2, 1].map(|jobs| json(&format!("{command} --jobs {jobs}")));
    assert_eq!(first["runs"], 6);
    assert_eq!(first["failed"], 0);
    assert!(first["operations"].as_u64().unwrap() > 100);
    assert!(first["virtual_s"].as_f64().unwrap() >= 72.0);
    assert_eq!(first["trace_hash"], second["trace_hash"]);
    let other = json("sim faults --seed 6 --seeds 6 --minutes 0.2 --json");
    assert_ne!(first["trace_hash"], other["trace_hash"]);
}

#[test]
fn wrong_arguments_are_explained() {
    for (arguments, expected) in [
        ("sim faults --ranks 1", "2 to 32"),
        ("sim faults --minutes 0", "more than 0"),
        ("sim faults --faults drop,rust", "unknown fault `rust`"),
        ("sim faults --do sent", "unknown operation `sent`"),
        ("sim faults --endpoints rdma", "unknown endpoints `rdma`"),
    ] {
        let output = weft(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(expected), "{arguments}: {text}");
    }
}

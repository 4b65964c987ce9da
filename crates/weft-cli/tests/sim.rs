//! `weft sim` from its command line.

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
fn collectives_are_predicted_and_repeat() {
    let command = "sim scale --ranks 16,3000 --coll allreduce --bytes 8 --json";
    let [first, second] = [1, 2].map(|_| json(command));
    let hash = |value: &Value, row: usize| value["rows"][row]["trace_hash"].as_str().unwrap().to_owned();
    assert_eq!([hash(&first, 0), hash(&first, 1)], [hash(&second, 0), hash(&second, 1)]);
    assert_ne!(hash(&first, 0), hash(&json(&format!("{command} --seed 2")), 0));
    // Four rounds of 16 messages; 2,048 ranks in eleven rounds, and the others before and after them.
    assert_eq!(first["rows"][0]["messages"], 64);
    assert_eq!(first["rows"][1]["messages"], 11 * 2048 + 2 * 952);
    assert_eq!(first["rows"][1]["schedules"], 3);
}

#[test]
fn a_profile_of_the_user_is_read_and_drawn() {
    let folder = std::env::temp_dir().join(format!("weft-sim-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (profile, drawing) = (folder.join("mine.toml"), folder.join("mine.svg"));
    let far = "[far]\nsend = { is = \"1 us\", source = \"s\" }\nlatency = { is = \"5 us\", source = \"s\" }\n";
    std::fs::write(&profile, format!("name = \"mine\"\nabout = \"a\"\n{far}")).unwrap();
    let command = format!("sim scale --profile {} --ranks 2,4 --json --svg {}", profile.display(), drawing.display());
    let made = json(&command);
    assert_eq!(made["rows"][0]["time_us"], 6.0);
    assert_eq!(made["rows"][1]["time_us"], 12.0);
    assert!(std::fs::read_to_string(&drawing).unwrap().starts_with("<svg"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn figures_and_papers_are_printed() {
    let figures = json("sim scale --profile unimem --figure latency,future --json");
    assert_eq!(figures.as_array().unwrap().len(), 2);
    let report = json("sim paper --short --json");
    assert_eq!(report["disagreeing"], 0);
    assert!(report["predicted"].as_u64() > report["fitted"].as_u64());
    assert!(json("sim profile connectx2 --json")["values"].as_array().unwrap().iter().any(|v| v["fit"].is_string()));
}

#[test]
fn wrong_simulations_are_explained() {
    for (arguments, expected) in [
        ("sim scale --profile cray", "no profile `cray`"),
        ("sim scale --profile ./no.toml", "cannot be read"),
        ("sim scale --profile unimem --figure 9", "latency, bandwidth, future"),
        ("sim scale --ranks 0", "not in 1..=1048576"),
        ("sim scale --ranks 8192 --coll allgather --bytes 64", "take fewer ranks"),
        ("sim scale --profile unimem --figure latency --coll barrier", "cannot be used with"),
    ] {
        let output = weft(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(expected), "{arguments}: {text}");
    }
}

#[cfg(feature = "lab")]
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

#[cfg(feature = "lab")]
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

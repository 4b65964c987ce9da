//! Text that another process, or another host, has chosen, on its way to the terminal.
//!
//! Place in the data flow: `bench/remote.rs` (messages of the other host), `bench/launch.rs` (what ranks say), `run/`
//! (reports of ranks) and `stat/` (what processes publish, and their names) pass such text through here. A control
//! character would let its author move the cursor, change colours, or hide other text.

use serde_json::Value;

/// The text without characters that change the terminal or the direction of the text. Each becomes a space.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|char| if char.is_control() || is_direction(char) { ' ' } else { char }).collect()
}

/// Whether the character changes the direction in which text is displayed, or joins and hides its neighbours.
const fn is_direction(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Makes all texts of a message fit to be shown, with the names of its fields.
pub(crate) fn show_all(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(shown(&text)),
        Value::Array(values) => values.into_iter().map(show_all).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (shown(&name), show_all(value))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_changes_the_terminal() {
        assert_eq!(shown("node1: 5 µs"), "node1: 5 µs");
        assert_eq!(shown("a\x1b[2Jb\rc\nd\u{9b}1me\u{202e}f\x07"), "a [2Jb c d 1me f ");
        let message = json!({"said": {"failed\x1b": ["x\x1b]0;y\x07", 3, null]}});
        assert_eq!(show_all(message), json!({"said": {"failed ": ["x ]0;y ", 3, null]}}));
    }
}

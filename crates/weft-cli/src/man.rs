//! `weft man`: the man page fi_weft(7).
//!
//! Its text is `man/fi_weft.7.in`; the line that says so is replaced by the table of variables, so that the page
//! cannot tell other names and defaults than the code has.

use std::fmt::Write;

use weft_fi::params::TABLE;

const TEMPLATE: &str = include_str!("../../../man/fi_weft.7.in");
/// A comment in roff, alone on its line.
const PARAMETERS: &str = ".\\\" @PARAMETERS@\n";

/// The page, in roff.
pub(crate) fn page() -> String {
    TEMPLATE.replace(PARAMETERS, &parameters()).replace("@VERSION@", env!("CARGO_PKG_VERSION"))
}

/// One tagged paragraph for each variable.
fn parameters() -> String {
    let mut text = String::new();
    for param in TABLE {
        let default = if param.default.is_empty() { "none" } else { param.default };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            ".TP\n\\fBFI_WEFT_{}\\fR (\\fI{}\\fR, default: {})\n{}",
            escape(param.name),
            escape(param.unit),
            escape(default),
            escape(param.help)
        );
    }
    text
}

/// Text as roff takes it: no line begins with a control character, hyphens and backslashes are what they are.
fn escape(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('µ', "\\[mc]");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_variable_and_nothing_left_to_fill_in() {
        let page = page();
        assert!(TABLE.iter().all(|param| page.contains(&format!("FI_WEFT_{}", param.name))));
        assert!(!page.contains('@'), "a placeholder is left");
        assert!(page.starts_with(".TH fi_weft 7"));
    }

    #[test]
    fn the_page_in_the_tree_is_current() {
        let kept = include_str!("../../../man/fi_weft.7");
        assert!(kept == page(), "man/fi_weft.7 is not what `weft man` prints: run `make man`");
    }

    #[test]
    fn roff_does_not_take_text_for_requests() {
        assert_eq!(escape(".so"), "\\&.so");
        assert_eq!(escape("a\\b-c"), "a\\eb\\-c");
    }
}

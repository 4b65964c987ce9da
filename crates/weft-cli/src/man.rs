//! `weft man`: the man pages fi_weft(7) and weft(1).
//!
//! weft(1) is made of the options' declarations, and the text `man/weft.1.in` follows them.
//!
//! fi_weft(7):
//! The text is `man/fi_weft.7.in`. Tables of variables, atomic operations and counters replace its placeholder lines.
//! Names, defaults and operations on the page are therefore those of the code.

use std::fmt::Write;
use std::io;

use clap::ValueEnum;
use clap_mangen::Man;
use weft_engine::amo::{Class, Form, OPS, OpRow, TYPES};
use weft_fi::params::{Param, TABLE};
use weft_observe::layout::{Endpoint, Group, Peer};

use crate::stat::PUBLISHED_OTHERWISE;

/// A man page.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Page {
    /// The provider.
    FiWeft,
    /// The command.
    Weft,
}

/// The sections of weft(1) after those of the subcommands.
const WEFT_END: &str = include_str!("../../../man/weft.1.in");
const TEMPLATE: &str = include_str!("../../../man/fi_weft.7.in");
// The placeholders are roff comments, each alone on its line.
const PARAMETERS: &str = ".\\\" @PARAMETERS@\n";
const REGISTRATION: &str = ".\\\" @REGISTRATION@\n";
const ATOMICS: &str = ".\\\" @ATOMICS@\n";
const ENDPOINT_COUNTERS: &str = ".\\\" @ENDPOINT_COUNTERS@\n";
const PEER_COUNTERS: &str = ".\\\" @PEER_COUNTERS@\n";
const GROUP_FIGURES: &str = ".\\\" @GROUP_FIGURES@\n";

/// The page, in roff.
pub(crate) fn page() -> String {
    TEMPLATE
        .replace(PARAMETERS, &parameters(|param| !param.is_of_registration()))
        .replace(REGISTRATION, &parameters(Param::is_of_registration))
        .replace(ATOMICS, &atomics())
        .replace(ENDPOINT_COUNTERS, &counters(Endpoint::FIELDS))
        .replace(PEER_COUNTERS, &counters(Peer::FIELDS))
        .replace(GROUP_FIGURES, &counters(Group::FIELDS))
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
}

/// Writes weft(1), in roff: the command, then each of its subcommands as a section.
pub(crate) fn write_weft(command: &clap::Command, out: &mut impl io::Write) -> io::Result<()> {
    let mut command = command.clone();
    command.build();
    let man = Man::new(command.clone()).manual("weft");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    write_subcommands(&command, out)?;
    out.write_all(WEFT_END.as_bytes())
}

fn write_subcommands(command: &clap::Command, out: &mut impl io::Write) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        if sub.has_subcommands() && sub.get_positionals().next().is_none() {
            write_subcommands(sub, out)?;
            continue;
        }
        let man = Man::new(sub.clone());
        let mut parts = Vec::new();
        man.render_synopsis_section(&mut parts)?;
        man.render_description_section(&mut parts)?;
        man.render_options_section(&mut parts)?;
        let name = sub.get_bin_name().unwrap_or(sub.get_name());
        // Sections of a subcommand become parts of its own section; its synopsis and description need no heads.
        let text = String::from_utf8_lossy(&parts).replace(".SH SYNOPSIS\n", "").replace(".SH DESCRIPTION\n", ".PP\n");
        writeln!(out, ".SH {}\n{}", escape(name), text.replace(".SH OPTIONS", ".SS Options"))?;
        write_subcommands(sub, out)?;
    }
    Ok(())
}

/// One tagged paragraph for each variable of a list.
fn parameters(is_listed: impl Fn(&Param) -> bool) -> String {
    let mut text = String::new();
    for param in TABLE.iter().filter(|param| is_listed(param)) {
        let limits = param.limits.map(|(least, most)| format!(", {least} to {most}")).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            ".TP\n\\fBFI_WEFT_{}\\fR (\\fI{}\\fR{}{limits})\n{}",
            escape(param.name),
            escape(param.unit),
            escape(&param.default_text()),
            escape(param.help)
        );
    }
    text
}

/// One tagged paragraph for each counter.
fn counters(fields: &[(&str, &str)]) -> String {
    let shown = fields.iter().filter(|(name, _)| !PUBLISHED_OTHERWISE.contains(name));
    shown.map(|(name, help)| format!(".TP\n.B {}\n{}\n", escape(name), escape(help))).collect()
}

/// One tagged paragraph for each group of atomic operations: the operations, their forms, and their types.
fn atomics() -> String {
    let mut text = String::new();
    for (n, first) in OPS.iter().enumerate() {
        let alike = |row: &&OpRow| row.forms == first.forms && row.on == first.on;
        if OPS[..n].iter().any(|row| alike(&row)) {
            continue;
        }
        let group = OPS.iter().filter(alike);
        let ops = group.map(|row| format!("FI_{}", row.name)).collect::<Vec<_>>().join(", ");
        let forms = first.forms.iter().map(|form| form_name(*form)).collect::<Vec<_>>().join(" and ");
        let on = first.on.iter().map(|class| class_name(*class)).collect::<Vec<_>>().join(", ");
        // Writing to a string cannot fail.
        let _ = writeln!(text, ".TP\n.B {}\n{forms}; {}", escape(&ops), escape(&on));
    }
    for class in [Class::Integer, Class::Real, Class::Complex] {
        let of_class = TYPES.iter().filter(|row| row.class == class);
        let types = of_class.map(|row| format!("FI_{}", row.name)).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, ".TP\nThe {} are\n{}.", class_name(class), escape(&types));
    }
    text
}

const fn form_name(form: Form) -> &'static str {
    match form {
        Form::Base => "base",
        Form::Fetch => "fetching",
        Form::Compare => "comparing",
    }
}

const fn class_name(class: Class) -> &'static str {
    match class {
        Class::Integer => "integers",
        Class::Real => "floating-point numbers",
        Class::Complex => "complex numbers",
    }
}

/// Escapes text for roff: hyphens and backslashes are literal, and no line begins with a control character.
fn escape(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('µ', "\\[mc]");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_variable_and_no_placeholder() {
        let page = page();
        assert!(TABLE.iter().all(|param| page.contains(&format!("FI_WEFT_{}", param.name))));
        assert!(!page.contains('@'), "a placeholder is left");
        assert!(page.starts_with(".TH fi_weft 7"));
    }

    #[test]
    fn the_page_of_the_command_has_every_subcommand() {
        use clap::CommandFactory;
        let mut page = Vec::new();
        write_weft(&crate::Cli::command(), &mut page).expect("memory takes all bytes");
        let page = String::from_utf8(page).expect("text");
        for section in ["run", "doctor", "stat", "bench"] {
            assert!(page.contains(&format!(".SH weft {section}\n")), "{section}: {page}");
        }
        assert!(page.contains("\\-\\-require") && !page.contains("bench\\-child"), "{page}");
    }

    #[test]
    fn the_checked_in_page_is_current() {
        let kept = include_str!("../../../man/fi_weft.7");
        assert!(kept == page(), "man/fi_weft.7 is not what `weft man` prints: run `make man`");
    }

    #[test]
    fn roff_escapes_protect_leading_dots() {
        assert_eq!(escape(".so"), "\\&.so");
        assert_eq!(escape("a\\b-c"), "a\\eb\\-c");
    }
}

//! The rules for state and arguments: most fields of structs are private to their module, and few functions have
//! adjacent parameters that a caller can exchange unnoticed.
//!
//! The rules look at the sources of the crates, without tests and without the generated declarations of libfabric. A
//! field is open if it has any visibility qualifier (`pub`, `pub(crate)`, `pub(super)`, `pub(in …)`). The engine, whose
//! state is the largest, has a limit of its own. Two adjacent parameters count if both have the same type of integers.

use anyhow::Context;
use syn::visit::{self, Visit};

use super::files::File;
use super::{Counts, Rule};

/// The types of integers.
const INTEGERS: [&str; 12] = ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize"];

pub(super) fn check(files: &[File], counts: &mut Counts) -> anyhow::Result<()> {
    let has = |file: &File, name: &str| file.path.components().any(|part| part.as_os_str() == name);
    let is_test = |file: &File| has(file, "tests") || file.path.ends_with("tests.rs");
    for file in files.iter().filter(|file| file.is("rs") && file.path.starts_with("crates") && has(file, "src")) {
        if !is_test(file) && !has(file, "weft-fi-sys") {
            let syntax =
                syn::parse_file(&file.text).with_context(|| format!("cannot parse {}", file.path.display()))?;
            let open = if has(file, "weft-engine") { Rule::OpenFields } else { Rule::OpenFieldsElsewhere };
            Items { file, open, counts }.visit_file(&syntax);
        }
    }
    Ok(())
}

struct Items<'a> {
    file: &'a File,
    /// The rule for the fields of this file.
    open: Rule,
    counts: &'a mut Counts,
}

impl<'ast> Visit<'ast> for Items<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let syn::Fields::Named(fields) = &item.fields else { return };
        for field in &fields.named {
            self.counts.look(self.open, 1);
            if !matches!(field.vis, syn::Visibility::Inherited) {
                let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                self.counts.find(self.open, &self.file.path, 0, format!("{}.{name}", item.ident));
            }
        }
    }

    fn visit_signature(&mut self, function: &'ast syn::Signature) {
        self.counts.look(Rule::AdjacentIntegers, 1);
        let types: Vec<_> = function.inputs.iter().map(integer).collect();
        if types.windows(2).any(|pair| pair[0].is_some() && pair[0] == pair[1]) {
            self.counts.find(Rule::AdjacentIntegers, &self.file.path, 0, function.ident.to_string());
        }
    }
}

/// The type of a parameter, if it is an integer.
fn integer(parameter: &syn::FnArg) -> Option<&'static str> {
    let syn::FnArg::Typed(syn::PatType { ty, .. }) = parameter else { return None };
    let syn::Type::Path(syn::TypePath { qself: None, path }) = &**ty else { return None };
    INTEGERS.into_iter().find(|name| path.is_ident(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(path: &str, text: &str) -> Counts {
        let mut counts = Counts::default();
        check(&[File { path: path.into(), text: text.to_owned() }], &mut counts).expect("valid Rust");
        counts
    }

    #[test]
    fn open_fields_are_counted() {
        let text = "struct A { a: u8, pub(crate) b: u8 }\nmod tests { struct B { pub c: u8 } }\n";
        for (path, rule) in
            [("crates/weft-engine/src/a.rs", Rule::OpenFields), ("crates/weft-nic/src/a.rs", Rule::OpenFieldsElsewhere)]
        {
            let counts = counts(path, text);
            let count = &counts.0[&rule];
            assert_eq!((count.figure(), count.total, count.findings[0].text.as_str()), (1, 2, "A.b"));
        }
        assert!(counts("crates/weft-fi-sys/src/a.rs", text).0.is_empty());
    }

    #[test]
    fn adjacent_integers_of_one_type_are_counted() {
        let text = "fn a(a: u32, b: u32) {}\nimpl B { fn b(&self, a: u32, b: u64, c: u32) {} }\ntrait C { fn c(a: &str, b: usize, c: usize); }\n";
        let counts = counts("crates/weft-nic/src/a.rs", text);
        let count = &counts.0[&Rule::AdjacentIntegers];
        let found: Vec<_> = count.findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!((found, count.total), (vec!["a", "c"], 3));
    }
}

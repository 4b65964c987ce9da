//! The rule for the engine's state: most fields of its structs are private to their module.
//!
//! The rule counts the named fields of structs in weft-engine's sources, without tests. A field is open if it has any
//! visibility qualifier (`pub`, `pub(crate)`, `pub(super)`, `pub(in …)`).

use anyhow::Context;
use syn::visit::{self, Visit};

use super::files::File;
use super::{Counts, Rule};

pub(super) fn check(files: &[File], counts: &mut Counts) -> anyhow::Result<()> {
    let is_test =
        |file: &File| file.path.components().any(|part| part.as_os_str() == "tests") || file.path.ends_with("tests.rs");
    for file in files.iter().filter(|file| file.is("rs") && file.path.starts_with("crates/weft-engine/src")) {
        if !is_test(file) {
            let syntax =
                syn::parse_file(&file.text).with_context(|| format!("cannot parse {}", file.path.display()))?;
            Fields { file, counts }.visit_file(&syntax);
        }
    }
    Ok(())
}

struct Fields<'a> {
    file: &'a File,
    counts: &'a mut Counts,
}

impl<'ast> Visit<'ast> for Fields<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let syn::Fields::Named(fields) = &item.fields else { return };
        for field in &fields.named {
            self.counts.look(Rule::OpenFields, 1);
            if !matches!(field.vis, syn::Visibility::Inherited) {
                let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                self.counts.find(Rule::OpenFields, &self.file.path, 0, format!("{}.{name}", item.ident));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_fields_are_counted() {
        let text = "struct A { a: u8, pub(crate) b: u8 }\nmod tests { struct B { pub c: u8 } }\n";
        let file = File { path: "crates/weft-engine/src/a.rs".into(), text: text.to_owned() };
        let mut counts = Counts::default();
        check(&[file], &mut counts).expect("valid Rust");
        let count = &counts.0[&Rule::OpenFields];
        assert_eq!((count.figure(), count.total, count.findings[0].text.as_str()), (1, 2, "A.b"));
    }
}

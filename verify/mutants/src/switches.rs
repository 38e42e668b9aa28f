//! Puts all selected changes (mutations) of a source file into one text. Each change has a switch,
//! which an environment variable turns on. So one build is enough for all changes. The body of a
//! function is repeated for each change of this function.
//!
//! ```text
//! fn f() { a < b }    fn f() { if on(7) { a <= b } else if on(8) { a > b } else { a < b } }
//! ```
//!
//! Some changes do not build in this form and are not tried: changes of constants, changes of a
//! `const fn`, and changes of a function that returns an `impl Trait`.

use std::fmt::Write as _;
use std::ops::Range;

use syn::spanned::Spanned as _;
use syn::visit::Visit;

use crate::Mutant;

/// Text of a source file in which an environment variable turns each change on.
pub(crate) struct Switched {
    pub(crate) text: String,
    /// Ranges of the text, each with the numbers of its changes. Each change has a separate range,
    /// and each function has a larger range with all its changes.
    parts: Vec<(Range<usize>, Vec<usize>)>,
}

impl Switched {
    /// Adds these mutants (changes of the code) to the text of a source file, each with a switch.
    /// Each change has a number.
    pub(crate) fn new(text: &str, changes: &[(usize, &Mutant)]) -> Result<Self, String> {
        let mut functions = Functions(Vec::new());
        functions.visit_file(&syn::parse_file(text).map_err(|e| e.to_string())?);
        let (mut new, mut parts, mut at) = (String::new(), Vec::new(), 0);
        for (whole, body) in functions.0 {
            let inside = |m: &Mutant| body.start <= m.range.start && m.range.end <= body.end;
            let here: Vec<_> = changes.iter().filter(|(_, m)| inside(m)).collect();
            if here.is_empty() {
                continue;
            }
            new.push_str(&text[at..whole.start]);
            let start = new.len();
            new.push_str(&text[whole.start..body.start]);
            new.push_str("{ ");
            for (id, mutant) in &here {
                let other = mutant.made(&text[body.clone()], body.start);
                let start = new.len();
                let _ = write!(new, "if crate::palisade_mutants::on({id}) {other} else ");
                parts.push((start..new.len(), vec![*id]));
            }
            new.push_str(&text[body.clone()]);
            new.push_str(" }");
            parts.push((start..new.len(), here.iter().map(|(id, _)| *id).collect()));
            at = body.end;
        }
        new.push_str(&text[at..]);
        Ok(Self { text: new, parts })
    }

    /// Returns the numbers of the code changes that an environment variable can turn on in this
    /// file.
    pub(crate) fn ids(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().flat_map(|(_, ids)| ids.iter().copied())
    }

    /// Returns the numbers of the changes at this byte offset of the text to which the switches
    /// were added.
    pub(crate) fn at(&self, offset: usize) -> Option<&[usize]> {
        let part = self.parts.iter().find(|(range, _)| range.contains(&offset));
        part.map(|(_, ids)| &ids[..])
    }
}

/// Outermost functions of a file, in the order of the text: the range of each function and the
/// range of its body.
struct Functions(Vec<(Range<usize>, Range<usize>)>);

impl<'ast> Visit<'ast> for Functions {
    /// Skips modules of unit tests, because `cargo mutants` does not recognise unit tests that need
    /// a feature.
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        self.0.push((f.span().byte_range(), f.block.span().byte_range()));
    }

    fn visit_impl_item_fn(&mut self, f: &'ast syn::ImplItemFn) {
        self.0.push((f.span().byte_range(), f.block.span().byte_range()));
    }

    fn visit_trait_item_fn(&mut self, f: &'ast syn::TraitItemFn) {
        if let Some(block) = &f.default {
            self.0.push((f.span().byte_range(), block.span().byte_range()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "impl S { fn f(&self) -> bool { a < b } } fn g() { h() } \
                        mod tests { fn t() { i() } }";

    fn switched() -> Switched {
        let change = |old: &str, new: &str| {
            let start = TEXT.find(old).expect("it is there");
            Mutant {
                file: "a.rs".into(),
                place: (1, 1),
                change: String::new(),
                range: start..start + old.len(),
                replacement: new.into(),
            }
        };
        let changes =
            [change("<", "<="), change("a < b", "true"), change("h()", "()"), change("i()", "()")];
        Switched::new(TEXT, &changes.iter().enumerate().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn each_change_is_a_body_behind_its_switch_and_the_function_is_there_without_any() {
        let shown = switched().text.replace("crate::palisade_mutants::", "");
        assert_eq!(
            shown,
            "impl S { fn f(&self) -> bool { if on(0) { a <= b } else if on(1) { true } else \
             { a < b } } } fn g() { if on(2) { () } else { h() } } \
             mod tests { fn t() { i() } }"
        );
    }

    #[test]
    fn an_error_is_about_the_change_or_else_about_all_changes_of_its_function() {
        let switched = switched();
        let at = |part: &str| switched.at(switched.text.find(part).expect("it is there"));
        assert_eq!(at("a <= b"), Some(&[0][..]));
        assert_eq!(at("true"), Some(&[1][..]));
        assert_eq!(at("a < b"), Some(&[0, 1][..]));
        assert_eq!(at("fn f"), Some(&[0, 1][..]));
        assert_eq!(at("impl"), None);
    }
}

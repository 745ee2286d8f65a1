//! Changes of sources before they are compiled ([`crate::JitConfig::edits`]).

use serde::Deserialize;

use crate::error::{Error, Result};

/// A change of a source before it is compiled, to try something without a checkout. The edited text is part of the cache key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceEdit {
    /// The file: as kernels include it (`anabranch/publish.h`), or `<unit>.hip`. Kernels without it stay as they are.
    pub file: String,
    /// A line of it, or several. The text must occur in it exactly once.
    pub line: String,
    /// What stands there instead.
    pub replace: String,
}

impl SourceEdit {
    /// The text of `file` with all `edits` of it. Each refers to the unedited text.
    ///
    /// # Errors
    /// [`Error::Edit`] where an edit's text occurs more often or less often than once, or two edits are of the same text.
    pub fn apply(edits: &[Self], file: &str, text: &str) -> Result<String> {
        let refuse = |edit: &Self, problem: String| {
            Err(Error::Edit { file: file.to_owned(), line: edit.line.clone(), problem })
        };
        let mut places = Vec::new();
        for edit in edits.iter().filter(|edit| edit.file == file) {
            let mut found = text.match_indices(&edit.line);
            match (found.next(), found.count()) {
                (Some((at, _)), 0) => places.push((at, edit)),
                (first, more) => {
                    let times = usize::from(first.is_some()) + more;
                    return refuse(edit, format!("the text must occur once, and occurs {times} times"));
                }
            }
        }
        places.sort_by_key(|(at, _)| *at);
        let (mut edited, mut end) = (String::with_capacity(text.len()), 0);
        for (at, edit) in places {
            let Some(between) = text.get(end..at) else {
                return refuse(edit, "another edit is of the same text".to_owned());
            };
            edited.push_str(between);
            edited.push_str(&edit.replace);
            end = at + edit.line.len();
        }
        edited.push_str(&text[end..]);
        Ok(edited)
    }
}

#[cfg(test)]
mod tests {
    use super::SourceEdit;

    fn edit(line: &str, replace: &str) -> SourceEdit {
        SourceEdit { file: "a.h".to_owned(), line: line.to_owned(), replace: replace.to_owned() }
    }

    #[test]
    fn edits_are_of_the_text_as_it_was() {
        let text = "one;\ntwo;\nthree;\n";
        let edits = [edit("three;", "one;\n    four;"), edit("one;\ntwo;", "")];
        assert_eq!(SourceEdit::apply(&edits, "a.h", text).unwrap(), "\none;\n    four;\n");
        assert_eq!(SourceEdit::apply(&edits, "b.h", text).unwrap(), text);
    }

    #[test]
    fn an_edit_that_has_no_place_of_its_own_is_refused() {
        let refused = |edits: &[SourceEdit]| {
            SourceEdit::apply(edits, "a.h", "one;\ntwo;\none;\n").unwrap_err().to_string()
        };
        assert!(refused(&[edit("one;", "")]).contains("occurs 2 times"));
        assert!(refused(&[edit("four;", "")]).contains("occurs 0 times"));
        assert!(refused(&[edit("", "x")]).contains("must occur once"));
        assert!(refused(&[edit("two;", ""), edit("two;\none;", "")]).contains("another edit"));
    }
}

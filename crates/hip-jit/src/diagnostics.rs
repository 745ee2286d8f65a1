//! Reads what compilers print.

use std::fmt;

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Explains another one.
    Note,
    /// Compiles.
    Warning,
    /// Does not compile.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One message of a compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file; empty when none is named (a linker).
    pub file: String,
    /// The line, from 1; 0 when none is named.
    pub line: u32,
    /// The column, from 1; 0 when none is named.
    pub column: u32,
    /// How bad it is.
    pub severity: Severity,
    /// The compiler's words.
    pub text: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
        }
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        if self.column > 0 {
            write!(f, "{}:", self.column)?;
        }
        if !self.file.is_empty() {
            f.write_str(" ")?;
        }
        write!(f, "{}: {}", self.severity, self.text)
    }
}

/// Reads the forms of gcc and clang (`file:line:column: error: text`), of NVIDIA's compilers
/// (`file(line): error: text`) and of linkers (`ld.lld: error: text`). Other lines are skipped; the log keeps them.
pub(crate) fn parse_diagnostics(log: &str) -> Vec<Diagnostic> {
    log.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Diagnostic> {
    const MARKS: [(&str, Severity); 4] = [
        (": fatal error", Severity::Error),
        (": error", Severity::Error),
        (": warning", Severity::Warning),
        (": note", Severity::Note),
    ];
    let (at, mark, severity) = MARKS
        .iter()
        .filter_map(|(mark, severity)| line.find(mark).map(|at| (at, *mark, *severity)))
        .min_by_key(|(at, mark, _)| (*at, std::cmp::Reverse(mark.len())))?;
    let rest = &line[at + mark.len()..];
    // Between the word and its colon only a number may stand: `error #20: text`, `warning #177-D: text`.
    let (number, text) = rest.split_once(": ")?;
    if !number.is_empty() && !number.trim_start().starts_with('#') {
        return None;
    }
    let (file, line_number, column) = place(&line[..at]);
    let file = file.strip_prefix("./").unwrap_or(file);
    let file = file.strip_prefix("include/").unwrap_or(file);
    Some(Diagnostic {
        file: file.to_owned(),
        line: line_number,
        column,
        severity,
        text: text.trim().to_owned(),
    })
}

fn place(text: &str) -> (&str, u32, u32) {
    if let Some((file, line)) = text.strip_suffix(')').and_then(|text| text.rsplit_once('('))
        && let Ok(line) = line.parse()
    {
        return (file, line, 0);
    }
    let number = |text: &str| text.parse::<u32>().ok();
    if let Some((rest, last)) = text.rsplit_once(':')
        && let Some(last) = number(last)
    {
        if let Some((file, line)) = rest.rsplit_once(':')
            && let Some(line) = number(line)
        {
            return (file, line, last);
        }
        return (rest, last, 0);
    }
    (text, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compilers_forms_are_read() {
        for (line, shown) in [
            (
                "scale.hip:88:5: error: unknown type name 'u64x'",
                "scale.hip:88:5: error: unknown type name 'u64x'",
            ),
            ("include/anabranch/a.h:7: fatal error: nothing", "anabranch/a.h:7: error: nothing"),
            (
                "./include/anabranch/a.h:7:1: warning: unused: x [-Wunused]",
                "anabranch/a.h:7:1: warning: unused: x [-Wunused]",
            ),
            (
                "scale.hip(12): error: identifier \"x\" is undefined",
                "scale.hip:12: error: identifier \"x\" is undefined",
            ),
            ("scale.hip(12): warning #177-D: unused", "scale.hip:12: warning: unused"),
            ("scale.hip(3): error #20: wrong", "scale.hip:3: error: wrong"),
            ("scale.hip:9:1: note: here", "scale.hip:9:1: note: here"),
            ("ld.lld: error: undefined symbol: f", "ld.lld: error: undefined symbol: f"),
        ] {
            let found = parse_diagnostics(line);
            assert_eq!(found.len(), 1, "{line}");
            assert_eq!(found[0].to_string(), shown);
        }
        let noise = "scale.hip: In function 'f':\n   88 | u64x x;\n      | ^~~~\n1 error generated when compiling\n: errors happen";
        assert_eq!(parse_diagnostics(noise), []);
    }
}

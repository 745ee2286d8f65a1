//! Where entries stand on a page of limited width.

use super::entry::Entry;

/// A narrower column is none: then all devices share one.
const LEAST_COLUMN: usize = 30;
const GAP: &str = "  ";

/// An entry that is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) entry: &'a Entry<'a>,
    /// Whether it touches what the problem names.
    pub(super) touches: bool,
    /// Whether what follows it is left out.
    pub(super) alone: bool,
}

/// The page: a heading, then the entries.
pub(super) fn lines(rows: &[Row<'_>], devices: &[u32], width: usize) -> Vec<String> {
    let digits = rows.iter().map(|row| row.entry.step.to_string().len()).max().unwrap_or(0).max(4);
    // "> 1234" before every line.
    let before = digits + 2;
    let room = width.saturating_sub(before);
    let each = (room / devices.len().max(1)).saturating_sub(GAP.len());
    let shared = each < LEAST_COLUMN && devices.len() > 1;
    let column_width = if shared { room.saturating_sub(GAP.len()) } else { each }.max(8);
    let column_of =
        |device: u32| if shared { 0 } else { devices.iter().position(|one| *one == device).unwrap_or(0) };
    let line = |mark: &str, step: &str, column: usize, text: &str| {
        let indent = " ".repeat(column * (column_width + GAP.len()));
        format!("{mark:<2}{step:>digits$}{GAP}{indent}{text}").trim_end().to_owned()
    };
    let mut page = Vec::new();
    if shared {
        page.push(line("", "step", 0, "device and event"));
    } else {
        let names: Vec<String> =
            devices.iter().map(|device| format!("{:<column_width$}", format!("device {device}"))).collect();
        page.push(line("", "step", 0, &names.join(GAP)));
    }
    let mut kernels = vec![""; devices.len()];
    for Row { entry, touches, alone } in rows {
        let event = entry.event();
        let column = column_of(event.device);
        let name = if shared { format!("d{} ", event.device) } else { String::new() };
        if let Some(place) = devices.iter().position(|device| *device == event.device)
            && kernels[place] != &*event.kernel
        {
            kernels[place] = &event.kernel;
            for text in wrap(&format!("{name}[{}]", event.kernel), column_width) {
                page.push(line("", "", column, &text));
            }
        }
        let mut mark = if *touches { ">" } else { "" };
        let mut step = entry.step.to_string();
        for text in wrap(&format!("{name}{}", entry.text()), column_width) {
            page.push(line(mark, &step, column, &text));
            mark = "";
            step.clear();
        }
        if *alone {
            page.push(line("", "...", column, ""));
        }
    }
    page
}

/// Breaks a text at spaces, and a word that is wider than a line anywhere; lines behind the first are indented.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let indent = if lines.len() > 1 { "  " } else { "" };
            let Some(line) = lines.last_mut() else { return lines };
            if line.is_empty() {
                line.push_str(indent);
            }
            let begun = line.len() > indent.len();
            let used = line.chars().count() + usize::from(begun);
            if used + word.len() <= width {
                line.extend(begun.then_some(' ').into_iter().chain(word));
                break;
            }
            if !begun {
                // Nothing else stands there: as much as fits.
                let fits = width - line.chars().count();
                line.extend(word.drain(..fits));
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_at_spaces_and_no_letter_is_lost() {
        assert_eq!(wrap("b0 w0 store heap0+64..72", 16), ["b0 w0 store", "  heap0+64..72"]);
        assert_eq!(wrap("abcdefghijklm op", 8), ["abcdefgh", "  ijklm", "  op"]);
        assert_eq!(wrap("short", 8), ["short"]);
    }
}

//! The device headers of this crate.
//!
//! A kernel unit that uses them lists [`DEVICE_HEADERS`] after [`anabranch_hip_jit::PRELUDE`] and includes `ccl/reduce.h`. Everything is in
//! the namespace `ccl`. An element type is the struct that [`DataType::device_name`](crate::types::DataType::device_name) names.

use anabranch_hip_jit::{Header, device_headers};

/// The headers of channels, packets, element types and reductions. They include the prelude.
pub const DEVICE_HEADERS: &[Header] = device_headers!();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DATA_TYPES, ReduceOp};
    use anabranch_testkit::lint::lint_source;

    #[test]
    fn sources_pass_the_lints() {
        let units = crate::device::kernels::UNITS.into_iter();
        let units = units.map(|unit| Header { name: unit.name, text: unit.source });
        for header in DEVICE_HEADERS.iter().copied().chain(units) {
            let found = lint_source(header.name, header.text);
            assert!(found.is_empty(), "{found:#?}");
        }
    }

    #[test]
    fn operators_and_types_match_the_headers() {
        let named = |name: &str| DEVICE_HEADERS.iter().find(|header| header.name == name).unwrap();
        let (elements, reduce) = (named("ccl/elements.h"), named("ccl/reduction.h"));
        let declared = reduce.text.lines().find(|line| line.starts_with("enum ReduceOp")).unwrap();
        for op in ReduceOp::all(1.0) {
            let name = op.name().to_uppercase();
            let word = format!("{name} = {}", op.torch_value());
            let words: Vec<&str> = declared.split(['{', '}', ',']).map(str::trim).collect();
            assert!(words.contains(&word.as_str()), "{word}");
        }
        for data_type in DATA_TYPES {
            let name = data_type.device_name();
            let forms = [format!(" {name};"), format!("struct {name} "), format!("using ::{name};")];
            assert!(forms.iter().any(|form| elements.text.contains(form)), "{name}");
        }
    }
}

//! The constants of the device header `sdma/packets.h`, rendered from the table of fields. A test holds the file against what is
//! rendered here, and rewrites it when asked (`UPDATE_EXPECT=1`).

use core::fmt::{self, Write as _};

use crate::format::{ATOMIC_ADD_64, FORMATS};

/// The text of the header: for every packet its first word without fields, its length, and each field's word, shift and mask.
///
/// # Errors
/// None: writing to a string does not fail.
pub fn render() -> Result<String, fmt::Error> {
    let mut text = String::from(
        "// Packets of copy engines. Rendered from the table of fields in the crate that owns this file: change that.\n\
         #pragma once\n",
    );
    for format in FORMATS {
        let packet = format.name.to_uppercase().replace(' ', "_");
        let head = format.op | format.sub_op << 8;
        write!(text, "\nstatic constexpr u32 SDMA_{packet} = {head:#x};\n")?;
        writeln!(text, "static constexpr u32 SDMA_{packet}_WORDS = {};", format.words)?;
        for field in format.fields {
            let name = format!("SDMA_{packet}_{}", field.name);
            writeln!(text, "static constexpr u32 {name}_WORD = {};", field.word)?;
            if field.bits < 32 {
                writeln!(text, "static constexpr u32 {name}_SHIFT = {};", field.shift)?;
                writeln!(text, "static constexpr u32 {name}_MOST = {:#x};", field.most())?;
            }
        }
    }
    write!(text, "\nstatic constexpr u32 SDMA_ATOMIC_ADD_64 = {ATOMIC_ADD_64};\n")?;
    Ok(text)
}

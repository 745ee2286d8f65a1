//! Element types as words of a command line.

use anabranch_ccl::DATA_TYPES;
use anabranch_ep::{DataType, ROW_TYPES, UnsupportedDataType};

/// An element type of the rows of dispatch.
pub(crate) fn row_type(text: &str) -> Result<DataType, UnsupportedDataType> {
    DataType::parse_among(text, &ROW_TYPES)
}

/// An element type of collectives.
pub(crate) fn collective_type(text: &str) -> Result<DataType, UnsupportedDataType> {
    DataType::parse_among(text, &DATA_TYPES)
}

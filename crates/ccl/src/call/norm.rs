//! The RMSNorm that follows an all_reduce in one call: its tensors and their checks.

use anabranch_shmem::Team;

use super::in_place;
use crate::call::tensor::Tensor;
use crate::device::kernels::NORM_TYPES;
use crate::device::norm::{NORM_E4M3, NORM_E4M3_FNUZ, NORM_PLAIN, RowNorm, UNIT_BYTES};
use crate::types::{Collective, DataType, Error, Result};

/// Alignment of tensors and of the length of a row, bytes.
const ALIGNMENT: u64 = 16;
const COLLECTIVE: Collective = Collective::AllReduce;

/// RMSNorm of the rows of a sum over ranks, with a residual before it and 8-bit floats after it. What a row becomes:
///
/// - `kept = sum + residual`, the sum rounded to the element type as all_reduce rounds it, then this sum rounded to it;
/// - `output = kept / sqrt(mean(kept^2) + epsilon) * weight`, in f32, rounded once to the element type;
/// - with [`Quantised`] the output divided by its scale, rounded once to E4M3 (OCP or FNUZ), saturating.
///
/// The bits are the same on every rank, for every algorithm, and whether one kernel or two compute them. Tensors of this rank alone
/// may be in any memory. They start at multiples of 16 bytes, and a row is a multiple of 16 bytes long. No written tensor overlaps another
/// tensor, except that `kept` may be `residual`, and that `kept` or an output of the element type may be the input.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// `[rows][row]`: added to the sum. `None`: nothing is added.
    pub residual: Option<Tensor<'a>>,
    /// `[rows][row]`: written with what was normed, the residual of the next layer. `None`: it is not stored.
    pub kept: Option<Tensor<'a>>,
    /// `[row]`: its length is that of a row.
    pub weight: Tensor<'a>,
    /// Added to the mean of the squares; finite and not negative.
    pub epsilon: f32,
    /// `[rows][row]`: written; of the element type, or of [`DataType::F8E4m3`] or [`DataType::F8E4m3Fnuz`] with `quantised`.
    pub output: Tensor<'a>,
    /// The scales of an output of 8 bits.
    pub quantised: Option<Quantised<'a>>,
}

/// The scales of an output of 8 bits.
#[derive(Clone, Copy, Debug)]
pub enum Quantised<'a> {
    /// One scale, f32 `[1]`, which the call reads in the order of the stream.
    By(Tensor<'a>),
    /// A scale for each group of consecutive elements of a row: its largest magnitude, at least 1e-10, divided by the largest value of the type.
    Groups {
        /// Elements of a group: a multiple of 8 that divides the row.
        group: u32,
        /// f32, written: the scale of group g of row r is at `r * row_stride + g * group_stride`.
        scales: Tensor<'a>,
        /// Elements between the scales of two rows.
        row_stride: u64,
        /// Elements between the scales of two groups.
        group_stride: u64,
    },
}

impl<'a> RmsNorm<'a> {
    /// Elements of a row.
    pub const fn row(&self) -> u64 {
        self.weight.count()
    }

    /// Every tensor but the input.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = Tensor<'a>> {
        let all = [self.residual, self.kept, self.scales(), Some(self.weight), Some(self.output)];
        all.into_iter().flatten()
    }

    fn scales(&self) -> Option<Tensor<'a>> {
        self.quantised.map(|quantised| match quantised {
            Quantised::By(scales) | Quantised::Groups { scales, .. } => scales,
        })
    }

    /// Checks types and counts beside those of the input.
    ///
    /// # Errors
    /// [`Error::Type`], [`Error::Count`], [`Error::Argument`].
    pub(crate) fn check(&self, input: &Tensor<'_>) -> Result<()> {
        let data_type = input.data_type();
        if !NORM_TYPES.contains(&data_type) {
            let allowed = anabranch_elements::data_type::names(&NORM_TYPES);
            return Err(Error::Type { collective: COLLECTIVE, what: "the input", given: data_type, allowed });
        }
        let row = self.row();
        let bytes = row * u64::from(data_type.bytes());
        if row == 0 || !bytes.is_multiple_of(ALIGNMENT) || bytes / UNIT_BYTES > u64::from(u32::MAX) {
            return Err(argument(
                "a row, the length of the weight,",
                format!("{row} elements of {data_type}"),
                "a multiple of 16 bytes",
            ));
        }
        if !input.count().is_multiple_of(row) {
            let rule = format!("a multiple of {row}, the length of the weight");
            return Err(Error::Count {
                collective: COLLECTIVE,
                what: "the input",
                given: input.count(),
                rule,
            });
        }
        if !(self.epsilon >= 0.0 && self.epsilon.is_finite()) {
            return Err(argument(
                "epsilon",
                self.epsilon.to_string(),
                "a finite number that is not negative",
            ));
        }
        let rows = [("the residual", self.residual), ("the kept rows", self.kept)];
        for (what, tensor) in rows.into_iter().filter_map(|(what, tensor)| Some((what, tensor?))) {
            same_type(what, &tensor, data_type)?;
            same_count(what, &tensor, input.count())?;
        }
        same_type("the weight", &self.weight, data_type)?;
        same_count("the output", &self.output, input.count())?;
        self.check_output(data_type, input.count() / row)
    }

    fn check_output(&self, data_type: DataType, rows: u64) -> Result<()> {
        let Some(quantised) = self.quantised else {
            return same_type("the output", &self.output, data_type);
        };
        if self.format() == NORM_PLAIN {
            let (given, allowed) = (
                self.output.data_type(),
                anabranch_elements::data_type::names(&[DataType::F8E4m3, DataType::F8E4m3Fnuz]),
            );
            return Err(Error::Type { collective: COLLECTIVE, what: "the output", given, allowed });
        }
        match quantised {
            Quantised::By(scale) => {
                same_type("the scale", &scale, DataType::F32)?;
                same_count("the scale", &scale, 1)
            }
            Quantised::Groups { group, scales, row_stride, group_stride } => {
                same_type("the scales", &scales, DataType::F32)?;
                if group == 0 || !group.is_multiple_of(8) || !self.row().is_multiple_of(group.into()) {
                    let allowed = "a multiple of 8 elements that divides the row";
                    return Err(argument("a group", format!("{group} elements"), allowed));
                }
                let groups = self.row() / u64::from(group);
                let apart = row_stride >= groups && group_stride == 1
                    || group_stride >= rows && row_stride == 1
                    || rows <= 1 && group_stride > 0
                    || groups == 1 && row_stride > 0;
                if !apart {
                    return Err(argument(
                        "the strides of the scales",
                        format!("{row_stride} of rows, {group_stride} of groups"),
                        "a stride of 1 and one of at least as many elements as there are groups or rows",
                    ));
                }
                // Products of 64-bit numbers stay in 128 bits.
                let last = u128::from(row_stride) * u128::from(rows.saturating_sub(1))
                    + u128::from(group_stride) * u128::from(groups - 1);
                if rows > 0 && last >= u128::from(scales.count()) {
                    let rule = format!("more than {last}, the place of the last scale");
                    let given = scales.count();
                    return Err(Error::Count { collective: COLLECTIVE, what: "the scales", given, rule });
                }
                Ok(())
            }
        }
    }

    /// Checks alignment and overlaps of all tensors.
    ///
    /// # Errors
    /// [`Error::Argument`], [`Error::Alignment`], [`Error::Overlap`], [`Error::Foreign`].
    pub(crate) fn check_places(&self, input: &Tensor<'a>, team: &Team) -> Result<()> {
        let at = |tensor: &Tensor<'_>| Ok::<_, Error>(tensor.address(team)?.0);
        let scales = self.scales();
        let wide = [Some(*input), self.residual, self.kept, Some(self.weight), Some(self.output)];
        for tensor in wide.iter().flatten() {
            let address = at(tensor)?;
            if !address.is_multiple_of(ALIGNMENT) {
                return Err(argument(
                    "the start of a tensor",
                    format!("{address:#x}"),
                    "a multiple of 16 bytes",
                ));
            }
        }
        if let Some(scales) = scales
            && !at(&scales)?.is_multiple_of(4)
        {
            return Err(Error::Alignment { address: at(&scales)?, data_type: DataType::F32 });
        }
        let from = at(input)?;
        // Of tensors that are the same memory one is in the list.
        let is_input = |tensor: &Tensor<'_>| Ok::<_, Error>(at(tensor)? == from);
        let kept_is_input = self.kept.as_ref().map_or(Ok(false), is_input)?;
        let output_is_input = self.quantised.is_none() && is_input(&self.output)?;
        let kept_is_residual = match (&self.kept, &self.residual) {
            (Some(kept), Some(residual)) => at(kept)? == at(residual)?,
            _ => false,
        };
        let read = |tensor: Tensor<'a>| (tensor, false);
        let written = |tensor: Tensor<'a>| (tensor, true);
        let all = [
            Some(written(*input)),
            self.kept.filter(|_| !kept_is_input).map(written),
            self.residual.filter(|_| !kept_is_residual || kept_is_input).map(read),
            Some(read(self.weight)),
            Some(written(self.output)).filter(|_| !output_is_input || kept_is_input),
            scales.map(|scales| (scales, !matches!(self.quantised, Some(Quantised::By(_))))),
        ];
        in_place::check_apart(COLLECTIVE, all.into_iter().flatten(), team)
    }

    /// The error for a row that does not fit into `longest` bytes of local memory.
    pub(crate) fn too_long(&self, input: &Tensor<'_>, longest: u64) -> Error {
        let (row, data_type) = (self.row(), input.data_type());
        Error::Count {
            collective: COLLECTIVE,
            what: "a row",
            given: row,
            rule: format!(
                "at most {}, which fit into the local memory of a block",
                longest / u64::from(data_type.bytes())
            ),
        }
    }

    fn format(&self) -> u32 {
        match self.output.data_type() {
            DataType::F8E4m3 => NORM_E4M3,
            DataType::F8E4m3Fnuz => NORM_E4M3_FNUZ,
            _ => NORM_PLAIN,
        }
    }

    /// The norm as kernels see it. The launch sets its place in local memory.
    pub(crate) fn arguments(&self, input: &Tensor<'_>, team: &Team) -> Result<RowNorm> {
        let at = |tensor: Option<&Tensor<'_>>| {
            tensor.map_or(Ok::<_, Error>(0), |tensor| Ok(tensor.address(team)?.0))
        };
        let (scales, group, strides) = match &self.quantised {
            None => (None, 0, (0, 0)),
            Some(Quantised::By(scale)) => (Some(scale), 0, (0, 0)),
            Some(Quantised::Groups { group, scales, row_stride, group_stride }) => {
                (Some(scales), *group, (*row_stride, *group_stride))
            }
        };
        Ok(RowNorm {
            residual: at(self.residual.as_ref())?,
            kept: at(self.kept.as_ref())?,
            weight: at(Some(&self.weight))?,
            output: at(Some(&self.output))?,
            scales: at(scales)?,
            scale_row_stride: strides.0,
            scale_group_stride: strides.1,
            rows: input.count() / self.row(),
            units: (self.row() * u64::from(input.data_type().bytes()) / UNIT_BYTES) as u32,
            group,
            format: self.format(),
            local: 0,
            epsilon: self.epsilon,
            padding: 0,
        })
    }
}

fn argument(what: &'static str, given: String, allowed: &'static str) -> Error {
    Error::Argument { collective: COLLECTIVE, what, given, allowed }
}

fn same_type(what: &'static str, tensor: &Tensor<'_>, needed: DataType) -> Result<()> {
    let given = tensor.data_type();
    if given == needed {
        return Ok(());
    }
    Err(Error::Type { collective: COLLECTIVE, what, given, allowed: needed.to_string() })
}

fn same_count(what: &'static str, tensor: &Tensor<'_>, needed: u64) -> Result<()> {
    let given = tensor.count();
    if given == needed {
        return Ok(());
    }
    Err(Error::Count { collective: COLLECTIVE, what, given, rule: needed.to_string() })
}

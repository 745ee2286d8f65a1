//! A plan's placement of experts, in device memory.

use anabranch_hip::{Device, DeviceBuffer};
use anabranch_hip_jit::{DevicePointer, bytemuck};

use crate::args::PlacementView;
use crate::error::{Error, Result};
use crate::plan::{PlacementTable, Plan};

/// A plan's placement in device memory.
#[derive(Debug)]
pub(crate) struct DevicePlacement {
    experts: u32,
    ranks: u32,
    table: Option<DeviceBuffer>,
}

impl DevicePlacement {
    /// Uploads the table, if the plan has one: `[experts + 1]` starts, then the ranks.
    pub(crate) fn new(device: &Device, plan: &Plan) -> Result<Self> {
        let experts = plan.config().experts;
        let upload = |table: &PlacementTable| {
            let mut words = vec![0];
            let mut owners = Vec::new();
            for expert in 0..experts {
                owners.extend(table.ranks_of(expert).iter().map(|rank| rank.get()));
                words.push(owners.len() as u32);
            }
            words.extend(owners);
            let mut buffer = device.allocate(words.len() * 4)?;
            buffer.copy_from_host(0, bytemuck::cast_slice(&words))?;
            Ok::<_, Error>(buffer)
        };
        let table = plan.config().placement.as_ref().map(upload).transpose()?;
        Ok(Self { experts, ranks: plan.ranks(), table })
    }

    /// As kernels take it; valid as long as `self` lives.
    pub(crate) fn view(&self) -> PlacementView {
        let even = PlacementView::even(self.experts, self.ranks);
        let Some(table) = &self.table else { return even };
        let owners = table.address().offset((u64::from(self.experts) + 1) * 4);
        PlacementView {
            starts: DevicePointer::new(table.address()),
            owners: DevicePointer::new(owners),
            ..even
        }
    }
}

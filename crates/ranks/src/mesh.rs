//! Meshes of any number of named axes.

use crate::{Error, Group, GroupRank};

/// One axis of a [`Mesh`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    name: String,
    size: u32,
    stride: u32,
}

impl Axis {
    /// Its name, as in `tp`; not empty, and different from those of the mesh's other axes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Places along it; at least 1.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// How far apart neighbours along it are, in positions of the mesh's group.
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// Where this position of the group stands along the axis.
    fn coordinate(&self, rank: GroupRank) -> u32 {
        rank.get() / self.stride % self.size
    }
}

/// A group laid out along named axes, as torch's `init_device_mesh` and JAX's `Mesh` do: row-major, so that the last axis
/// varies fastest from one member to the next.
///
/// Ranks are positions in [`Mesh::group`]. Everything here is arithmetic that each rank does alone; what a group is then
/// used for says who has to call.
///
/// ```
/// use anabranch_ranks::{GlobalRank, Group, GroupRank};
/// let mesh = Group::world(8)?.mesh(&[("dp", 2), ("tp", 4)])?;
/// let me = GroupRank::new(6);
/// assert_eq!(mesh.coordinates(me), Some(vec![1, 2]));
/// assert_eq!(mesh.group_along("tp", me)?.members(), [4, 5, 6, 7].map(GlobalRank::new));
/// assert_eq!(mesh.group_along("dp", me)?.members(), [2, 6].map(GlobalRank::new));
/// # Ok::<(), anabranch_ranks::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    group: Group,
    axes: Vec<Axis>,
}

impl Group {
    /// Lays the group out as a mesh with these axes, each a name and a size, the last one varying fastest.
    ///
    /// # Errors
    /// [`Error::Duplicate`] for a name given twice; [`Error::Invalid`] without axes, for an empty name, a size of 0, and
    /// when the sizes do not multiply to the group's size.
    pub fn mesh(&self, axes: &[(&str, u32)]) -> Result<Mesh, Error> {
        let call = "mesh";
        let names: Vec<&str> = axes.iter().map(|(name, _)| *name).collect();
        check_names(call, &names)?;
        if let Some(position) = names.iter().position(|name| name.is_empty()) {
            return Err(Error::invalid(
                call,
                format!("the axis at position {position} has an empty name"),
                "each axis needs a name",
            ));
        }
        if let Some((axis, _)) = axes.iter().find(|(_, size)| *size == 0) {
            return Err(Error::invalid(
                call,
                format!("axis '{axis}' has a size of 0"),
                "it must be at least 1",
            ));
        }
        let mut places = Some(1_u32);
        let mut laid: Vec<Axis> = Vec::with_capacity(axes.len());
        for (name, size) in axes.iter().rev() {
            // After an overflow the strides do not matter: the sizes are refused below.
            laid.push(Axis { name: (*name).to_owned(), size: *size, stride: places.unwrap_or(u32::MAX) });
            places = places.and_then(|places| places.checked_mul(*size));
        }
        laid.reverse();
        if places != Some(self.size()) {
            let given = format!("the axes are {}", in_words(&laid));
            let allowed = format!(
                "their sizes must multiply to the group's size, and the group has {} members",
                self.size()
            );
            return Err(Error::invalid(call, given, allowed));
        }
        Ok(Mesh { group: self.clone(), axes: laid })
    }
}

impl Mesh {
    /// The group that is laid out.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The axes, the last one varying fastest.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The axis of this name.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that no axis has.
    pub fn axis(&self, name: &str) -> Result<&Axis, Error> {
        self.find("axis", name)
    }

    /// Where the member at this position stands, one number for each axis in the order of the axes; `None` when the group
    /// has no such position.
    pub fn coordinates(&self, rank: GroupRank) -> Option<Vec<u32>> {
        (rank.get() < self.group.size()).then(|| self.axes.iter().map(|axis| axis.coordinate(rank)).collect())
    }

    /// The position of the member that stands there; one coordinate for each axis in the order of the axes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number of coordinates than the mesh has axes, or one past the end of its axis.
    pub fn rank_at(&self, coordinates: &[u32]) -> Result<GroupRank, Error> {
        let call = "rank_at";
        if coordinates.len() != self.axes.len() {
            let given = format!("{} coordinates were given", coordinates.len());
            let allowed = format!("each axis needs exactly one ({})", in_words(&self.axes));
            return Err(Error::invalid(call, given, allowed));
        }
        let mut position = 0;
        for (axis, given) in self.axes.iter().zip(coordinates) {
            if *given >= axis.size {
                let Axis { name, size, .. } = axis;
                let allowed = format!("the axis has {size} places (0 to {})", size - 1);
                return Err(Error::invalid(
                    call,
                    format!("coordinate {given} is outside axis '{name}'"),
                    allowed,
                ));
            }
            // Stays below the product of the sizes, which is the group's size.
            position += given * axis.stride;
        }
        Ok(GroupRank::new(position))
    }

    /// The members that stand where this one does but for this axis, in its order: the member's rank in that group is its
    /// coordinate along the axis.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that no axis has; [`Error::OutsideGroup`] for a position that the mesh's group does not have.
    pub fn group_along(&self, axis: &str, rank: GroupRank) -> Result<Group, Error> {
        self.over("group_along", &[axis], rank).map(|(group, _)| group)
    }

    /// All groups along this axis, which together have each member once. They come in the order of their first members.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that no axis has.
    pub fn all_groups_along(&self, axis: &str) -> Result<Vec<Group>, Error> {
        let call = "all_groups_along";
        let along = self.find(call, axis)?;
        let firsts = self.group.ranks().filter(|rank| along.coordinate(*rank) == 0);
        firsts.map(|first| self.line(call, &[along], first)).collect()
    }

    /// The members that stand where this one does but for these axes, flattened in the order given: the last axis given
    /// varies fastest.
    ///
    /// # Errors
    /// [`Error::Invalid`] without axes and for a name that no axis has; [`Error::Duplicate`]; [`Error::OutsideGroup`] for a
    /// position that the mesh's group does not have.
    pub fn group_over(&self, axes: &[&str], rank: GroupRank) -> Result<Group, Error> {
        self.over("group_over", axes, rank).map(|(group, _)| group)
    }

    /// [`Self::group_over`] as a mesh of these axes, in the order given.
    ///
    /// # Errors
    /// The errors of [`Self::group_over`].
    pub fn submesh(&self, axes: &[&str], rank: GroupRank) -> Result<Mesh, Error> {
        let (group, axes) = self.over("submesh", axes, rank)?;
        let axes: Vec<(&str, u32)> = axes.iter().map(|axis| (axis.name(), axis.size())).collect();
        group.mesh(&axes)
    }

    fn find(&self, call: &'static str, name: &str) -> Result<&Axis, Error> {
        self.axes.iter().find(|axis| axis.name == name).ok_or_else(|| {
            let allowed = format!("its axes are {}", in_words(&self.axes));
            Error::invalid(call, format!("the mesh has no axis '{name}'"), allowed)
        })
    }

    fn over(
        &self,
        call: &'static str,
        names: &[&str],
        rank: GroupRank,
    ) -> Result<(Group, Vec<&Axis>), Error> {
        check_names(call, names)?;
        let axes = names.iter().map(|name| self.find(call, name)).collect::<Result<Vec<_>, _>>()?;
        if self.group.global(rank).is_none() {
            return Err(Error::OutsideGroup { call, given: rank, size: self.group.size() });
        }
        let first =
            axes.iter().fold(rank.get(), |position, axis| position - axis.coordinate(rank) * axis.stride);
        Ok((self.line(call, &axes, GroupRank::new(first))?, axes))
    }

    /// All members from `first` on over these axes, along each of which `first` has the coordinate 0.
    fn line(&self, call: &'static str, axes: &[&Axis], first: GroupRank) -> Result<Group, Error> {
        let mut positions = vec![first.get()];
        for axis in axes {
            positions = positions
                .iter()
                .flat_map(|position| {
                    (0..axis.size).map(move |coordinate| position + coordinate * axis.stride)
                })
                .collect();
        }
        self.group.pick(call, positions.into_iter().map(GroupRank::new))
    }
}

fn check_names(call: &'static str, names: &[&str]) -> Result<(), Error> {
    if names.is_empty() {
        return Err(Error::invalid(call, "no axis was given", "at least one is needed"));
    }
    for (second, name) in names.iter().enumerate() {
        // Found at the latest where it stands itself.
        if let Some(first) = names.iter().position(|other| other == name)
            && first < second
        {
            return Err(Error::Duplicate { call, given: format!("axis '{name}'"), first, second });
        }
    }
    Ok(())
}

fn in_words(axes: &[Axis]) -> String {
    axes.iter().map(|axis| format!("{}={}", axis.name, axis.size)).collect::<Vec<_>>().join(", ")
}

//! Times by plain arithmetic: what moves, and the speeds of the links that it moves over.

mod known;
mod settings;

pub use known::{DeviceLinks, Source};
pub use settings::{LinkSettings, UnknownSpeed};

/// The speeds of one rank's links, by which routes are chosen where no table was measured. Equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeeds {
    /// GB/s (10^9 bytes a second) of a rank to all others of its node, in each direction.
    pub inside_gb_per_s: f64,
    /// Microseconds from a flag's store to where it is seen inside a node.
    pub inside_hop_us: f64,
    /// GB/s of a rank's NIC, in each direction.
    pub nic_gb_per_s: f64,
    /// Microseconds from a request in a NIC's queue to where its bytes are seen at the peer.
    pub nic_hop_us: f64,
    /// Microseconds between two requests of one NIC.
    pub nic_message_us: f64,
    /// Microseconds that a kernel's launch takes.
    pub launch_us: f64,
}

impl LinkSpeeds {
    /// The parts of the time of what moves.
    #[must_use]
    pub fn parts(&self, moved: &Moved) -> TimeParts {
        TimeParts {
            hops: f64::from(moved.launches) * self.launch_us
                + f64::from(moved.between_hops) * self.nic_hop_us
                + f64::from(moved.inside_hops) * self.inside_hop_us,
            inside: self.inside_us(moved.inside_bytes),
            between: self.between_us(moved.between_bytes),
            messages: moved.messages * self.nic_message_us,
        }
    }

    /// Microseconds that bytes take inside a node.
    #[must_use]
    pub fn inside_us(&self, bytes: f64) -> f64 {
        bytes / self.inside_gb_per_s / 1e3
    }

    /// Microseconds that bytes take through a NIC.
    #[must_use]
    pub fn between_us(&self, bytes: f64) -> f64 {
        bytes / self.nic_gb_per_s / 1e3
    }

    /// Bytes that take a NIC as long as this number of requests: smaller pieces are bound by requests.
    #[must_use]
    pub fn bytes_worth(&self, requests: u32) -> f64 {
        f64::from(requests) * self.nic_message_us * self.nic_gb_per_s * 1e3
    }
}

impl Default for LinkSpeeds {
    /// The speeds of an unknown device, all assumed.
    fn default() -> Self {
        DeviceLinks::of("").speeds()
    }
}

/// What a rank moves for an operation, counted or expected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// Bytes inside its node, in the direction that has more.
    pub inside_bytes: f64,
    /// Bytes through its NIC, in the direction that has more.
    pub between_bytes: f64,
    /// Requests for its NIC.
    pub messages: f64,
    /// Hops inside nodes of the longest chain.
    pub inside_hops: u32,
    /// Hops between nodes of the longest chain.
    pub between_hops: u32,
    /// Kernels, one after the other.
    pub launches: u32,
}

/// The parts of a time, microseconds; a NIC's bytes and requests go on at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeParts {
    /// Launches, hops, and what each waits for in the one before.
    pub hops: f64,
    /// Bytes inside nodes.
    pub inside: f64,
    /// Bytes between nodes.
    pub between: f64,
    /// Requests.
    pub messages: f64,
}

impl TimeParts {
    /// The time, where what moves goes on at once.
    #[must_use]
    pub fn at_once(self) -> f64 {
        self.hops + self.inside.max(self.between).max(self.messages)
    }

    /// The time, where inside and between go on one after the other.
    #[must_use]
    pub fn in_turn(self) -> f64 {
        self.hops + self.inside + self.between.max(self.messages)
    }

    /// The name of the largest.
    #[must_use]
    pub fn limit(self) -> &'static str {
        let all = [
            ("hops", self.hops),
            ("inside", self.inside),
            ("between", self.between),
            ("messages", self.messages),
        ];
        all.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).map_or("", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_largest_part() {
        let parts = TimeParts { hops: 1.0, inside: 2.0, between: 3.0, messages: 4.0 };
        assert_eq!(parts.limit(), "messages");
        assert_eq!(TimeParts { messages: 0.0, ..parts }.limit(), "between");
        assert!((parts.at_once() - 5.0).abs() < 1e-12 && (parts.in_turn() - 7.0).abs() < 1e-12);
    }

    #[test]
    fn times_follow_from_the_speeds() {
        let speeds = LinkSpeeds {
            nic_gb_per_s: 25.0,
            inside_gb_per_s: 100.0,
            nic_message_us: 0.5,
            ..LinkSpeeds::default()
        };
        let moved = Moved {
            inside_bytes: 1e6,
            between_bytes: 1e6,
            messages: 8.0,
            inside_hops: 2,
            between_hops: 3,
            launches: 4,
        };
        let parts = speeds.parts(&moved);
        let hops = 4.0 * speeds.launch_us + 3.0 * speeds.nic_hop_us + 2.0 * speeds.inside_hop_us;
        for (us, expected) in
            [(parts.inside, 10.0), (parts.between, 40.0), (parts.messages, 4.0), (parts.hops, hops)]
        {
            assert!((us - expected).abs() < 1e-9, "{us} {expected}");
        }
        assert!((speeds.bytes_worth(2) - 25_000.0).abs() < 1e-9);
        assert!((speeds.between_us(speeds.bytes_worth(7)) - 7.0 * 0.5).abs() < 1e-9);
    }
}

//! What this build has, by its cargo features.

use anabranch_hip::RuntimeKind;
use anabranch_transport::TransportKind;

use crate::config::{Config, NicDriverName, Schedule};
use crate::error::{Error, Result};

/// The sentence for something that a build lacks.
pub(crate) fn not_built(feature: &str) -> String {
    format!("this build has no `{feature}`: enable the cargo feature `{feature}` of anabranch")
}

/// The cargo feature of a runtime.
pub(crate) const fn of_runtime(kind: RuntimeKind) -> &'static str {
    match kind {
        RuntimeKind::Amd => "amd",
        RuntimeKind::Nvidia => "nvidia",
        RuntimeKind::Host => "host",
    }
}

/// Refuses a configuration that names what this build lacks.
///
/// # Errors
/// [`Error::NotBuilt`] with the setting and the feature.
pub(crate) fn check(config: &Config) -> Result<()> {
    let require = |is_built: bool, setting, feature| {
        if is_built { Ok(()) } else { Err(Error::NotBuilt { setting, feature }) }
    };
    let runtime = match config.device.runtime {
        RuntimeKind::Host => cfg!(feature = "host"),
        RuntimeKind::Nvidia => cfg!(feature = "nvidia"),
        RuntimeKind::Amd => cfg!(feature = "amd"),
    };
    require(runtime, "device.runtime", of_runtime(config.device.runtime))?;
    if config.device.host.schedule == Schedule::Seeded {
        require(cfg!(feature = "seeded"), "device.host.schedule", "seeded")?;
    }
    for name in &config.transport.order {
        match name {
            TransportKind::P2p => Ok(()),
            TransportKind::Sdma => require(cfg!(feature = "sdma"), "transport.order", "sdma"),
            TransportKind::Rdma => require(cfg!(feature = "rdma"), "transport.order", "rdma"),
        }?;
    }
    if !config.transport.order.contains(&TransportKind::Rdma) {
        return Ok(());
    }
    match config.transport.rdma.driver {
        NicDriverName::Verbs | NicDriverName::Mlx5 | NicDriverName::Auto => Ok(()),
        NicDriverName::Libfabric => {
            require(cfg!(feature = "libfabric"), "transport.rdma.driver", "libfabric")
        }
        NicDriverName::Software => {
            require(cfg!(feature = "software-nic"), "transport.rdma.driver", "software-nic")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_lacks_is_named_with_its_feature() {
        let outcome = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            config.device.runtime = if cfg!(feature = "host") { RuntimeKind::Host } else { RuntimeKind::Amd };
            change(&mut config);
            check(&config).err().map(|error| error.to_string())
        };
        let by = |driver: NicDriverName| {
            move |config: &mut Config| {
                config.transport.order = vec![TransportKind::P2p, TransportKind::Rdma];
                config.transport.rdma.driver = driver;
            }
        };
        if !cfg!(any(feature = "host", feature = "amd")) {
            return;
        }
        let sdma = |config: &mut Config| config.transport.order = vec![TransportKind::Sdma];
        let nvidia = |config: &mut Config| config.device.runtime = RuntimeKind::Nvidia;
        for (outcome, feature, is_built) in [
            (outcome(&sdma), "sdma", cfg!(feature = "sdma")),
            (outcome(&nvidia), "nvidia", cfg!(feature = "nvidia")),
            (outcome(&by(NicDriverName::Verbs)), "rdma", cfg!(feature = "rdma")),
        ] {
            assert_eq!(outcome.is_none(), is_built, "{feature}: {outcome:?}");
            assert!(outcome.is_none_or(|text| text.contains(&not_built(feature))));
        }
        if cfg!(feature = "rdma") {
            let text = outcome(&by(NicDriverName::Software)).unwrap_or_default();
            assert_eq!(text.contains("`software-nic` of anabranch"), !cfg!(feature = "software-nic"));
        }
    }
}

//! The configuration: layers, errors, the shipped files, and the table that documents all of it.

use std::path::{Path, PathBuf};

use anabranch::RuntimeKind;
use anabranch::config::{
    ByteSize, Config, LoadOptions, LoadedConfig, SETTINGS, SettingKind, setting_named, settings_markdown,
};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn refused(text: &str) -> String {
    match Config::from_toml("cluster.toml", text) {
        Ok(_) => format!("{text:?} was accepted"),
        Err(error) => error.to_string(),
    }
}

fn layered(file: Option<&str>, environment: &[(&str, &str)], set: &[&str]) -> Result<LoadedConfig, String> {
    let options = LoadOptions {
        file: file.map(repository),
        environment: environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        set: set.iter().map(|text| (*text).into()).collect(),
        ..LoadOptions::default()
    };
    Config::load_with(&options).map_err(|error| error.to_string())
}

#[test]
fn every_shipped_file_loads() {
    let mut files: Vec<_> =
        std::fs::read_dir(repository("config")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let loaded = Config::from_toml(&path, &text).unwrap_or_else(|error| panic!("{error}"));
        assert!(loaded.origins.set_keys().count() > 0, "{} sets nothing", path.display());
    }
}

#[test]
fn text_is_on_top_of_the_file() {
    let options = |text: &str| LoadOptions {
        file: Some(repository("config/host-4.toml")),
        text: Some(text.to_owned()),
        environment: vec![("ANABRANCH__HEAP__MODE".to_owned(), "flat".to_owned())],
        set: Vec::new(),
    };
    let loaded = Config::load_with(&options("[heap]\nbytes = \"1 MiB\"\nmode = \"static\"\n")).unwrap();
    assert_eq!(loaded.config.heap.bytes, Some(ByteSize(1 << 20)));
    assert_eq!(loaded.config.heap.mode.word(), "flat");
    assert_eq!(loaded.config.device.host.wave, Some(1));
    assert_eq!(loaded.origins.of("heap.bytes").to_string(), "text of the configuration line 2");
    let error = Config::load_with(&options("[heap]\nbyte = 1\n")).unwrap_err().to_string();
    assert!(error.starts_with("text of the configuration line 2: unknown key `heap.byte`"), "{error}");
}

#[test]
fn the_gpu_files_hold_what_they_promise() {
    let h200 = layered(Some("config/h200-4.toml"), &[], &[]).unwrap().config;
    assert_eq!((h200.device.runtime, h200.heap.bytes), (RuntimeKind::Nvidia, Some(ByteSize(2 << 30))));
    let amd = layered(Some("config/mi300x-8.toml"), &[], &[]).unwrap().config;
    assert_eq!(amd.device.runtime, RuntimeKind::Amd);
    let threads = layered(Some("config/host-8-threads.toml"), &[], &[]).unwrap().config;
    assert_eq!((threads.device.host.count, threads.device.host.wave), (Some(8), Some(32)));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_a_suggestion() {
    for (text, message) in [
        ("[heap]\n\nbyte = 1\n", "cluster.toml line 3: unknown key `heap.byte`; did you mean `heap.bytes`?"),
        ("[haep]\nbytes = 1\n", "cluster.toml line 1: unknown table `haep`; did you mean `heap`?"),
        (
            "runtime = \"host\"\n",
            "cluster.toml line 1: unknown key `runtime`; did you mean `device.runtime`?",
        ),
        (
            "[device.hots]\nwave = 1\n",
            "cluster.toml line 1: unknown table `device.hots`; did you mean `device.host`?",
        ),
        ("[transport.p2p]\nfast = 1\n", "cluster.toml line 2: unknown key `transport.p2p.fast`"),
        ("heap.bytes = 4\nheap.colour = 3\n", "cluster.toml line 2: unknown key `heap.colour`"),
        // In the file's order, not the alphabet's.
        ("[zebra]\n[ant]\n", "cluster.toml line 1: unknown table `zebra`"),
    ] {
        assert_eq!(refused(text), message);
    }
}

#[test]
fn what_libfabric_does_not_go_by_is_refused() {
    for (key, value) in [("gid_index", 0), ("traffic_class", 8), ("service_level", 1)] {
        let message = refused(&format!("[transport.rdma]\ndriver = \"libfabric\"\n{key} = {value}\n"));
        let expected = format!("line 3: transport.rdma.{key}: ");
        for part in [expected.as_str(), "no effect", "libfabric"] {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }
}

/// Each message has all of its parts.
fn refused_with(cases: &[(&str, &[&str])]) {
    for (text, parts) in cases {
        let message = refused(text);
        for part in *parts {
            assert!(message.contains(part), "{text:?}: {message:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_wrong_value_is_named_with_its_line_and_what_would_be_right() {
    refused_with(&[
        ("[heap]\nbytes = \"two\"\n", &["cluster.toml line 2: heap.bytes: ", "\"2 GiB\""]),
        ("[heap]\nbytes = \"1.3 B\"\n", &["line 2: heap.bytes: ", "no whole number of bytes"]),
        ("[heap]\nbytes = -5\n", &["line 2: heap.bytes: ", "negative"]),
        ("[heap]\nbytes = true\n", &["line 2: heap.bytes: ", "a size such as"]),
        ("[heap]\nbytes = 0\n", &["line 2: heap.bytes: ", "leave it out"]),
        ("[heap]\nbytes = 17\n", &["line 2: heap.bytes: ", "(1 MiB)"]),
        ("[heap]\nmode = \"virtual\"\n", &["line 2: heap.mode: ", "\"virtual\"", "static, flat"]),
        ("[deadline]\noperation = 10\n", &["line 2: deadline.operation: "]),
        ("[deadline]\noperation = \"10\"\n", &["line 2: deadline.operation: ", "ns, us, ms, s, min and h"]),
        ("[device]\nruntime = \"rocm\"\n", &["line 2: device.runtime: ", "amd", "nvidia", "host"]),
        (
            "[device.host]\nschedule = \"seeded\"\n",
            &["line 2: device.host.schedule: ", "needs device.host.seed"],
        ),
        ("[device.host]\nseed = 3\n", &["line 2: device.host.seed: ", "no effect"]),
        #[cfg(feature = "seeded")]
        (
            "[device.host]\nschedule = \"seeded\"\nseed = 3\nfaults = [\"die:1\"]\n",
            &["line 4: device.host.faults: ", "\"die:1\" is no fault; written are kill:RANK@PRIMITIVE"],
        ),
        ("[device.host]\nwave = 3\n", &["line 2: device.host.wave: ", "1, 4, 32, 64"]),
        ("[device.host]\nseed = 7\n", &["line 2: device.host.seed: ", "no effect"]),
        ("[device.host]\ncount = 0\n", &["line 2: device.host.count: "]),
        ("[device]\ndevices = []\n", &["line 2: device.devices: ", "at least one device"]),
        ("[device]\nfirst = 1\ndevices = [0]\n", &["line 2: device.first: ", "device.devices"]),
        (
            "[ccl]\nalgorithm = \"tree\"\n",
            &["line 2: ccl.algorithm: is \"tree\"; allowed are auto, packets, two-shot-packets, "],
        ),
        ("[ccl]\nmax_blocks = 0\n", &["line 2: ccl.max_blocks: ", "at least 1"]),
        ("[ccl]\nmax_blocks = 1025\n", &["line 2: ccl.max_blocks: ", "is 1025; allowed is 0 to 1024"]),
        (
            "[ccl]\nstaging_bytes = \"1 KiB\"\n",
            &["line 2: ccl.staging_bytes: ", "is 1 KiB; allowed is at least 4 KiB"],
        ),
        ("[ccl]\ncheck = \"on\"\n", &["line 2: ccl.check: ", "off", "fingerprint"]),
        ("[ccl]\nstaging_bytes = 0\n", &["line 2: ccl.staging_bytes: ", "at least 4 KiB"]),
        ("[bootstrap]\naddress = \"head\"\n", &["line 2: bootstrap.address: ", "host:port"]),
        ("[bootstrap]\nsecret = \"hush\"\n", &["line 2: bootstrap.secret: has 4 bytes", "at least 16"]),
        (
            "[bootstrap]\nsecret = \"sixteen-letters-\"\nsecret_file = \"f\"\n",
            &["line 3: bootstrap.secret_file: ", "set one of the two"],
        ),
        ("[bootstrap]\nsilence = \"1 s\"\n", &["line 2: bootstrap.silence: ", "bootstrap.heartbeat"]),
        ("[deadline]\nrendezvous = \"25 h\"\n", &["line 2: deadline.rendezvous: ", "24 h"]),
    ]);
}

#[test]
fn a_wrong_transport_or_table_is_named_with_its_line() {
    refused_with(&[
        ("[transport]\norder = []\n", &["line 2: transport.order: "]),
        ("[transport]\norder = [\"p2p\", \"p2p\"]\n", &["line 2: transport.order: ", "twice"]),
        ("[transport.sdma]\nqueues = 0\n", &["line 2: transport.sdma.queues: ", "1 to 64"]),
        (
            "[transport.sdma]\nring_bytes = \"96 KiB\"\n",
            &["line 2: transport.sdma.ring_bytes: ", "is \"96 KiB\"; allowed is a power of two"],
        ),
        (
            "[transport.sdma]\nmost_copy_bytes = 100\n",
            &["line 2: transport.sdma.most_copy_bytes: ", "is \"100 B\"; allowed is a multiple of 32"],
        ),
        (
            "[transport.rdma]\ndriver = \"ibverbs\"\n",
            &["line 2: transport.rdma.driver: is \"ibverbs\"", "verbs, mlx5, auto, libfabric, software"],
        ),
        (
            "[transport.rdma]\nqueues = 65\n",
            &["line 2: transport.rdma.queues: ", "is 65; allowed is 1 to 64"],
        ),
        (
            "[transport.rdma]\nentries = 48\n",
            &["line 2: transport.rdma.entries: ", "is 48; allowed is a power of two"],
        ),
        ("[transport.rdma]\npatience = \"0 s\"\n", &["line 2: transport.rdma.patience: ", "1 ms to 3600 s"]),
        #[cfg(feature = "rdma")]
        ("[transport.rdma]\nnics = [\"mlx5_0:x\"]\n", &["line 2: transport.rdma.nics: ", "mlx5_0:x"]),
        (
            "[transport.rdma]\nfabric_provider = \"tcp\"\n",
            &["line 2: transport.rdma.fabric_provider: ", "no effect", "libfabric"],
        ),
        (
            "[transport.rdma]\nsoftware_address = \"127.0.0.1\"\n",
            &["line 2: transport.rdma.software_address: ", "no effect", "software"],
        ),
        (
            "[transport.rdma]\ndriver = \"software\"\nsoftware_address = \"0.0.0.0\"\n",
            &["line 3: transport.rdma.software_address: ", "every address"],
        ),
        (
            "[transport.rdma]\ndriver = \"software\"\nsoftware_address = \"::\"\n",
            &["line 3: transport.rdma.software_address: ", "every address"],
        ),
        ("[transport.rdma]\nservice_level = 16\n", &["line 2: transport.rdma.service_level: ", "0 to 15"]),
        ("[transport.rdma]\nsoftware_address = \"here\"\n", &["line 2: ", "IP address"]),
        (
            "[heap]\nmode = \"flat\"\n[transport]\norder = [\"p2p\", \"rdma\"]\n",
            &["line 2: heap.mode: ", "no rdma in transport.order"],
        ),
        ("[transport]\norder = [\"tcp\"]\n", &["line 2: transport.order: ", "\"tcp\"", "p2p"]),
        ("[kernels]\ncompile = true\n", &["line 2: kernels.compile: "]),
        ("heap = 3\n", &["line 1: heap: is a table"]),
        ("[heap\n", &["cluster.toml line 1: "]),
        ("[heap]\nbytes = 1\nbytes = 2\n", &["cluster.toml line 3: "]),
    ]);
}

#[test]
fn wrong_settings_of_kernels_are_named_with_their_line() {
    for (text, parts) in [
        ("compiler = \"gcc\"", ["line 2: kernels.compiler: ", "`gcc`", "a path, with a `/`"]),
        ("patience = \"0 s\"", ["line 2: kernels.patience: ", "is 0 ns", "allowed is 1 ms to 86400 s"]),
    ] {
        let message = refused(&format!("[kernels]\n{text}\n"));
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn later_layers_win_and_are_remembered() {
    let loaded = layered(
        Some("config/host-4.toml"),
        &[
            ("ANABRANCH__HEAP__BYTES", "3 GiB"),
            ("ANABRANCH__DEVICE__HOST__WAVE", "4"),
            ("HOME", "/x"),
            ("ANABRANCH_SECRET", "s"),
        ],
        &[
            "device.host.wave=64",
            "kernels.extra_options=-g,-O1",
            "bootstrap.secret=0123456789012345",
            "device.devices=[3, 1]",
        ],
    )
    .unwrap();
    let config = &loaded.config;
    assert_eq!((config.heap.bytes, config.device.host.wave), (Some(ByteSize(3 << 30)), Some(64)));
    assert_eq!(config.kernels.extra_options, ["-g", "-O1"]);
    assert_eq!(
        config.bootstrap.secret.as_deref(),
        Some("0123456789012345"),
        "digits stay a text where a text is wanted"
    );
    assert_eq!(config.device.devices.as_deref(), Some(&[3, 1][..]));
    let origin = |key| loaded.origins.of(key).to_string();
    assert_eq!(origin("heap.bytes"), "environment ANABRANCH__HEAP__BYTES");
    assert_eq!(origin("device.host.wave"), "--set device.host.wave=64");
    assert!(origin("device.runtime").ends_with("config/host-4.toml line 4"), "{}", origin("device.runtime"));
    assert_eq!(origin("kernels.compile"), "default");
}

#[test]
fn single_settings_are_refused_by_the_name_they_came_under() {
    let environment = |name, value| layered(None, &[(name, value)], &[]).unwrap_err();
    assert_eq!(
        environment("ANABRANCH__HEAP__BYTE", "1"),
        "environment ANABRANCH__HEAP__BYTE: unknown variable `ANABRANCH__HEAP__BYTE`; did you mean `ANABRANCH__HEAP__BYTES`?"
    );
    assert!(environment("ANABRANCH_HEAP_BYTES", "1").ends_with("did you mean `ANABRANCH__HEAP__BYTES`?"));
    assert!(
        environment("ANABRANCH__HEAP__BYTES", "")
            .starts_with("environment ANABRANCH__HEAP__BYTES: heap.bytes: ")
    );
    let set = |argument| layered(None, &[], &[argument]).unwrap_err();
    assert_eq!(set("heap.bite=1"), "--set heap.bite=1: unknown key `heap.bite`; did you mean `heap.bytes`?");
    assert_eq!(set("heap.bytes"), "--set heap.bytes: expected `table.key=value`");
    assert!(set("heap.bytes=soon").starts_with("--set heap.bytes=soon: heap.bytes: "));
    assert!(set("device.first=one").starts_with("--set device.first=one: device.first: "));
    assert!(set("heap=1").contains("unknown key `heap`"));
    let table = set("ccl.table=/absent/table.toml");
    assert!(
        table.starts_with("--set ccl.table=/absent/table.toml: ccl.table: the table of choices"),
        "{table}"
    );
    let table = set("ep.table=/absent/table.toml");
    assert!(
        table.starts_with("--set ep.table=/absent/table.toml: ep.table: the table of launches"),
        "{table}"
    );
    let missing = layered(Some("config/absent.toml"), &[], &[]).unwrap_err();
    assert!(missing.contains("config/absent.toml cannot be read"), "{missing}");
}

/// A value that differs from the default, for any setting.
fn other_value(kind: SettingKind, name: &str) -> &'static str {
    match (kind, name) {
        (_, "device.runtime") => "nvidia",
        (_, "device.host.wave") => "32",
        (_, "bootstrap.address") => "head:29500",
        (_, "bootstrap.secret") => "sixteen-letters-",
        (_, "kernels.compile") => "deny",
        (_, "kernels.constants") => "always",
        (_, "kernels.compiler") => "clang",
        (_, "ccl.algorithm") => "two-shot-packets",
        (_, "heap.mode") => "flat",
        (_, "transport.order") => "sdma,p2p",
        (_, "transport.sdma.ring_bytes") => "1 MiB",
        (_, "transport.rdma.driver") => "software",
        (_, "transport.rdma.entries") => "1024",
        (_, "ccl.check") => "fingerprint",
        (_, "ccl.meetings") => "stream",
        (_, "ccl.across") => "node",
        (_, "ep.mode") => "compact",
        (_, "ccl.table") => concat!(env!("CARGO_MANIFEST_DIR"), "/crates/ccl/tables/host.toml"),
        (_, "ep.table") => concat!(env!("CARGO_MANIFEST_DIR"), "/crates/ep/tables/host.toml"),
        (SettingKind::Boolean, _) => "true",
        (SettingKind::Integer, _) => "3",
        (SettingKind::Number, _) => "2.5",
        (SettingKind::Size, _) => "3 GiB",
        (SettingKind::Duration, "bootstrap.silence") => "30 s",
        (SettingKind::Duration, _) => "7 s",
        (SettingKind::Texts, _) => "a,b",
        (SettingKind::Integers, _) => "2,1",
        _ => "word",
    }
}

#[test]
fn every_setting_has_an_effect_and_every_field_is_a_setting() {
    let default = Config::default();
    for setting in SETTINGS {
        // One value each is built, or they need each other.
        let alone = [
            "device.host.schedule",
            "device.host.seed",
            "device.host.faults",
            "transport.rdma.fabric_provider",
            "transport.rdma.software_address",
            "transport.rdma.software_atomics",
        ];
        if alone.contains(&setting.name) {
            continue;
        }
        let argument = format!("{}={}", setting.name, other_value(setting.kind, setting.name));
        let loaded = layered(None, &[], &[&argument]).unwrap();
        assert_ne!(loaded.config, default, "{argument} changes nothing");
        let shared = loaded.config.fields() != default.fields();
        assert_eq!(shared, setting.shared, "{}", setting.name);
        let by_variable =
            layered(None, &[(&setting.variable(), other_value(setting.kind, setting.name))], &[]);
        assert_eq!(by_variable.unwrap().config, loaded.config, "{}", setting.variable());
        // A field that the table does not know would show up here, as it has a value now.
        for (name, _) in loaded.config.values() {
            assert!(setting_named(&name).is_some(), "{name} is in no table");
        }
        assert_eq!(
            setting.unset.is_empty(),
            default.values().iter().any(|(name, _)| name == setting.name),
            "{}",
            setting.name
        );
    }
}

#[test]
fn a_boolean_is_true_or_false_and_nothing_else() {
    for (text, value) in [("true", true), ("false", false)] {
        let loaded = layered(None, &[("ANABRANCH__KERNELS__DEBUG_INFO", text)], &[]).unwrap();
        assert_eq!(loaded.config.kernels.debug_info, value);
    }
    for text in ["", "0", "1", "on", "off", "yes", "no", "True", "FALSE", "nonsense"] {
        let error = layered(None, &[("ANABRANCH__KERNELS__DEBUG_INFO", text)], &[]).unwrap_err();
        assert!(error.contains("kernels.debug_info: ") && error.contains("a boolean"), "{error}");
    }
    for text in ["0", "1", "\"true\"", "\"off\""] {
        assert!(refused(&format!("[kernels]\ndebug_info = {text}\n")).contains("kernels.debug_info"));
    }
}

#[test]
fn what_is_shown_loads_to_the_same_configuration() {
    let loaded =
        layered(Some("config/mi300x-8.toml"), &[], &["device.devices=4,5", "kernels.arch=gfx942"]).unwrap();
    let lines: Vec<String> =
        loaded.config.values().iter().map(|(name, value)| format!("{name} = {value}")).collect();
    assert_eq!(Config::from_toml("shown", &lines.join("\n")).unwrap().config, loaded.config);
}

/// `UPDATE=1 cargo test -p anabranch --test it -- config::` writes the table.
#[test]
fn the_documentation_is_the_table() {
    let path = repository("docs/configuration.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (
        "<!-- settings: generated from the table in src/config/settings.rs -->\n",
        "<!-- end of settings -->",
    );
    let head = text.find(begin).expect("the begin mark") + begin.len();
    let tail = text.find(end).expect("the end mark");
    let wanted = settings_markdown();
    if text[head..tail] == wanted {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "the switch by which a snapshot is rewritten")]
    let update = std::env::var_os("UPDATE").is_some();
    assert!(
        update,
        "docs/configuration.md differs from the settings table; run UPDATE=1 cargo test -p anabranch --test it -- config::"
    );
    std::fs::write(&path, format!("{}{wanted}{}", &text[..head], &text[tail..])).unwrap();
}

#[test]
fn documented_nic_speeds_are_the_built_in_ones() {
    let speeds = anabranch_ranks::LinkSpeeds::default();
    for (name, built_in) in [
        ("links.nic_gb_per_s", speeds.nic_gb_per_s),
        ("links.nic_hop_us", speeds.nic_hop_us),
        ("links.nic_message_us", speeds.nic_message_us),
    ] {
        let unset = setting_named(name).unwrap().unset;
        assert!(unset.starts_with(&format!("built in: {built_in} (assumed")), "{name}: {unset}");
    }
}

#[test]
fn a_heap_that_does_not_fit_names_the_line_that_asks_for_it() {
    let error = refused("# a heap\n[heap]\nbytes = \"900 TiB\"\n");
    assert!(error.contains("line 3: heap.bytes: a heap of 900 TiB"), "{error}");
    assert!(error.contains("device.host.memory, which is 16 GiB by default"), "{error}");
    let error = layered(None, &[], &["heap.bytes=900 TiB"]).unwrap_err();
    assert!(error.contains("--set heap.bytes=900 TiB: heap.bytes:"), "{error}");
    // Both are written: the memory, and where the heap is.
    let error = refused("[heap]\nbytes = \"2 GiB\"\n[device.host]\nmemory = \"1 GiB\"\n");
    assert!(error.contains("line 4: device.host.memory: 1 GiB cannot hold a heap of 2 GiB"), "{error}");
    assert!(error.contains("line 2)"), "{error}");
    // A heap that is not asked for has the size that fits.
    layered(None, &[], &["device.host.memory=64 MiB"]).unwrap();
    // The memory of GPUs is their own.
    let gpu = ["device.host.memory=1 MiB", "heap.bytes=2 MiB", "device.runtime=amd"];
    layered(None, &[], &gpu).unwrap();
}

/// What the process has in its environment, with no file: what `load_with` makes of the same variables.
#[test]
fn the_environment_counts_without_a_file_where_it_is_asked_for() {
    let variables = anabranch::Environment::of_process().to_vec();
    let options = LoadOptions { environment: variables, ..Default::default() };
    let from_environment = Config::from_environment().map_err(|error| error.to_string());
    let expected = Config::load_with(&options).map(|loaded| loaded.config).map_err(|error| error.to_string());
    assert_eq!(from_environment, expected);
    let rerun = anabranch::Environment::of_process().get("ANABRANCH__HEAP__BYTES").is_some();
    if rerun {
        assert_eq!(from_environment.unwrap().heap.most_bytes(), 12 << 20);
        assert_ne!(Config::default().heap.most_bytes(), 12 << 20, "defaults do not read it");
        return;
    }
    // In another process, whose environment is set before it starts.
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "config::the_environment_counts_without_a_file_where_it_is_asked_for"])
        .env("ANABRANCH__HEAP__BYTES", "12 MiB")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && output.contains("1 passed"), "{output}");
}

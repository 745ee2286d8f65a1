//! `anabranch config`, and configuration errors of any command.

use crate::common;

use crate::common::{command, file, finish, run};

#[test]
fn the_shown_configuration_names_its_origins_and_loads_again() {
    let path = file("small.toml", "[heap]\nbytes = \"64 MiB\"\n");
    let path = path.to_str().unwrap();
    let shown = finish(
        command(&["config", "show", "--origin", "--config", path, "--set", "device.host.wave=4"])
            .env("ANABRANCH__DEADLINE__OPERATION", "3 s"),
    );
    assert_eq!(shown.code, 0, "{shown:?}");
    let line = |key: &str| shown.stdout.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    assert!(line("heap.bytes").contains("\"64 MiB\"") && line("heap.bytes").ends_with("small.toml line 2"));
    assert!(line("device.host.wave").ends_with("# --set device.host.wave=4"));
    assert!(line("deadline.operation").ends_with("# environment ANABRANCH__DEADLINE__OPERATION"));
    assert!(line("heap.mode").ends_with("# default"));
    // How kernels are made: what may be compiled, kept where, by what, for what.
    assert!(line("kernels.compile").ends_with("# default") && line("kernels.compiler").contains("\"auto\""));
    for unset in ["# kernels.cache is not set: ", "# kernels.arch is not set: what the device reports"] {
        assert!(!line(unset).is_empty(), "{unset}");
    }
    assert!(shown.stdout.contains("# bootstrap.secret is not set: from the launcher"));
    let again = file("again.toml", &shown.stdout);
    let again = run(&["config", "show", "--config", again.to_str().unwrap()]);
    let values = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split("  #").next().unwrap_or_default().trim_end().to_owned()).collect()
    };
    assert_eq!(values(&again.stdout), values(&shown.stdout));
}

#[test]
fn a_secret_is_not_shown() {
    let path = file("secret.toml", "[bootstrap]\nsecret = \"hush-from-the-file\"\n");
    let path = path.to_str().unwrap();
    for layer in [&["--config", path][..], &["--set", "bootstrap.secret=hush-from-the-arguments"]] {
        for flags in [&[][..], &["--origin"], &["--json"]] {
            let shown = run(&[&["config", "show"], layer, flags].concat());
            assert_eq!(shown.code, 0, "{shown:?}");
            assert!(!shown.stdout.contains("hush"), "{shown:?}");
            let line = shown.stdout.lines().find(|line| line.contains("bootstrap.secret")).unwrap();
            assert!(line.contains("(set)") && !line.contains("not set"), "{line}");
        }
    }
    let shown = finish(
        command(&["config", "show", "--origin"])
            .env("ANABRANCH__BOOTSTRAP__SECRET", "hush-from-the-environment"),
    );
    assert!(
        shown.stdout.contains("# bootstrap.secret = (set)  # environment ANABRANCH__BOOTSTRAP__SECRET\n"),
        "{shown:?}"
    );
    assert!(!shown.stdout.contains("hush"), "{shown:?}");
}

#[test]
fn json_is_one_object_a_line() {
    let shown = run(&["config", "show", "--json"]);
    let rows: Vec<serde_json::Value> =
        shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() > 20);
    let mode = rows.iter().find(|row| row["setting"] == "heap.mode").unwrap();
    assert_eq!((mode["value"].as_str(), mode["origin"].as_str()), (Some("static"), Some("default")));
    assert!(rows.iter().any(|row| row["setting"] == "kernels.cache" && row["value"].is_null()));
}

#[test]
fn a_wrong_file_is_refused_with_line_and_suggestion() {
    let path = file("wrong.toml", "# a comment\n[device.host]\nwaves = 4\n");
    let path = path.to_str().unwrap();
    for arguments in
        [&["config", "check", path][..], &["doctor", "--config", path], &["topo", "--config", path]]
    {
        let refused = run(arguments);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert_eq!(
            refused.stderr,
            format!(
                "anabranch: {path} line 3: unknown key `device.host.waves`; did you mean `device.host.wave`?\n"
            )
        );
        assert_eq!(refused.stdout, "");
    }
    let good = file("good.toml", "");
    let both = run(&["config", "check", "--json", good.to_str().unwrap(), path]);
    let rows: Vec<serde_json::Value> =
        both.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((both.code, rows[0]["ok"].as_bool(), rows[1]["ok"].as_bool()), (2, Some(true), Some(false)));
}

#[test]
fn missing_compiler_is_refused_by_check() {
    for (compiler, expected) in [
        ("/nonexistent/clang++", Some("line 2: kernels.compiler: \"/nonexistent/clang++\": no such file")),
        ("/usr/bin/nonsense", Some("is no compiler setting; accepted are auto, hipcc")),
        ("/usr/bin/g++", None),
        ("auto", None),
    ] {
        let path = file("compiler.toml", &format!("[kernels]\ncompiler = \"{compiler}\"\n"));
        let done = run(&["config", "check", path.to_str().unwrap()]);
        assert_eq!(done.code, if expected.is_some() { 2 } else { 0 }, "{done:?}");
        assert!(expected.is_none_or(|expected| done.stderr.contains(expected)), "{done:?}");
    }
}

#[test]
fn unknown_settings_are_refused_in_every_layer() {
    let by_environment = finish(command(&["config", "show"]).env("ANABRANCH__HEAP__BYTE", "1"));
    assert_eq!(by_environment.code, 2);
    assert!(
        by_environment.stderr.contains("did you mean `ANABRANCH__HEAP__BYTES`?"),
        "{}",
        by_environment.stderr
    );
    let by_argument = run(&["config", "show", "--set", "transport.rdma.queues=0"]);
    assert_eq!(by_argument.code, 2);
    assert!(by_argument.stderr.contains("is 0; allowed is 1 to 64"), "{}", by_argument.stderr);
    assert_eq!(run(&["config", "show", "--config", "/nonexistent.toml"]).code, 2);
    assert_eq!(run(&["topo", "--runtime", "cuda"]).code, 2, "an unknown runtime is a usage error");
}

#[test]
fn terminal_output_equals_file_output() {
    let program = env!("CARGO_BIN_EXE_anabranch");
    let plain = finish(std::process::Command::new(program).args(["config", "show", "--json"]));
    // util-linux's command gives another one a terminal. The shell's variable keeps a path with spaces whole.
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", "\"$PROGRAM\" config show --json", "/dev/null"]);
    let output = script.env("PROGRAM", program).stdin(std::process::Stdio::null()).output();
    let shown = match output {
        Ok(output) => common::Run::from(output),
        Err(error) => panic!("`script` cannot be run, which util-linux has (bsdutils on Debian): {error}"),
    };
    assert_eq!((shown.code, shown.stdout.replace("\r\n", "\n")), (plain.code, plain.stdout));
}

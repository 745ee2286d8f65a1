//! `anabranch bench` by copy engine, and beside a matrix product, with ranks that are processes on the host runtime.

use crate::common::{Run, run};

const SMALL: &[&str] =
    &["--runtime", "host", "--ranks", "2", "--iters", "2", "--json", "--set", "heap.bytes=64 MiB"];

fn rows(done: &Run) -> Vec<serde_json::Value> {
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn copy_engine_collectives_are_verified_or_refused() {
    let all = ["--transport", "sdma", "--op", "all_gather,all_to_all,broadcast,gather,scatter,all_reduce"];
    let rows = rows(&run(&[&["bench", "ccl"], SMALL, &all, &["--sizes", "3000,64K", "--graph"]].concat()));
    assert_eq!(rows.len(), 12);
    for row in &rows {
        assert_eq!(row["verified"].as_bool(), Some(true), "{row}");
        let words = ["algorithm", "transport", "mode"].map(|name| row[name].as_str());
        assert_eq!(words, ["copy-engine", "sdma", "graph"].map(Some), "{row}");
    }
    for (more, words) in [
        (["--op", "reduce"], "reduce does not go by it: it is for all_reduce"),
        (["--memory", "local"], "does not go by it: peers have to reach the output"),
    ] {
        let done = run(&[&["bench", "ccl"], SMALL, &["--transport", "sdma"], &more].concat());
        assert!(done.code != 0 && done.stderr.contains(words), "{done:?}");
    }
}

#[test]
fn a_product_beside_a_collective_is_timed_alone_and_together_for_each_contender() {
    let given = ["--op", "all_gather,all_reduce", "--sizes", "8K", "--product", "32"];
    let rows = rows(&run(&[&["bench", "overlap"], SMALL, &given].concat()));
    let said: Vec<_> =
        rows.iter().map(|row| ["op", "contender"].map(|name| row[name].as_str().unwrap())).collect();
    assert_eq!(
        said,
        [
            ["all_gather", "copy engine"],
            ["all_gather", "kernels"],
            ["all_reduce", "copy engine"],
            ["all_reduce", "kernels"]
        ]
    );
    for row in &rows {
        assert_eq!(row["verified"].as_bool(), Some(true), "{row}");
        assert_eq!(row["product"].as_str(), Some("32 x 32 x 32 bf16 by a plain kernel"), "{row}");
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        for name in ["us_median", "us_beside", "product_us", "product_us_beside"] {
            assert!(number(name) > 0.0, "{name}: {row}");
        }
        for (ratio, beside, alone) in
            [("slowdown", "us_beside", "us_median"), ("product_slowdown", "product_us_beside", "product_us")]
        {
            let expected = number(beside) / number(alone);
            assert!((number(ratio) / expected - 1.0).abs() < 0.01, "{ratio}: {row}");
        }
        assert!((0.0..=1.0).contains(&number("covered")), "{row}");
        let is_engine = row["algorithm"].as_str() == Some("copy-engine");
        assert_eq!(is_engine, row["contender"].as_str() == Some("copy engine"), "{row}");
    }
    for (more, words) in [
        (["--product", "100"], "allowed are multiples of 16"),
        (["--op", "reduce"], "reduce does not go by copy engine"),
        (["--cublas-library", "/x"], "a plain kernel computes the product"),
        (["--compare", "nccl"], "NCCL runs on NVIDIA GPUs"),
    ] {
        let done = run(&[&["bench", "overlap"], SMALL, &more].concat());
        assert!(done.code != 0 && done.stderr.contains(words), "{done:?}");
    }
}

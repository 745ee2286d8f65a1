//! What a machine without a driver is told.

use std::path::PathBuf;

use anabranch_hip::LoadError;

#[test]
fn a_missing_driver_is_an_error_that_lists_every_candidate() {
    let given = PathBuf::from("/nowhere/libcuda.so.1");
    let folder = std::env::temp_dir();
    match anabranch_hip_cuda::open(&[given.clone(), folder.clone()]) {
        Ok(runtime) => println!("skipped: this machine has a CUDA driver ({})", runtime.origin()),
        Err(LoadError::NotFound { tried, .. }) => {
            let paths: Vec<_> = tried.iter().map(|(path, _)| path.clone()).collect();
            assert_eq!(paths[0], PathBuf::from("libcuda.so.1"), "a mapped copy comes first");
            assert_eq!(paths[1..3], [given, folder.join("libcuda.so.1")]);
            assert_eq!(paths[3], PathBuf::from("libcuda.so.1"));
            let message =
                LoadError::NotFound { runtime: anabranch_hip::RuntimeKind::Nvidia, tried }.to_string();
            assert!(message.contains("not mapped in this process yet"), "{message}");
            assert!(message.contains("/nowhere/libcuda.so.1"), "{message}");
            assert!(message.contains("cannot open shared object file"), "the loader's words: {message}");
        }
        Err(other) => println!("skipped: a CUDA driver is there and does not work: {other}"),
    }
}

#[test]
fn a_library_that_is_no_driver_is_named_with_what_it_lacks() {
    let libc = PathBuf::from("libc.so.6");
    match anabranch_hip_cuda::open(std::slice::from_ref(&libc)) {
        Ok(runtime) => println!("skipped: this machine has a CUDA driver ({})", runtime.origin()),
        Err(LoadError::MissingSymbol { path, symbol, .. }) => {
            assert_eq!((path, symbol.as_str()), (libc, "cuInit"));
        }
        Err(other) => panic!("{other}"),
    }
}

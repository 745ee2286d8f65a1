//! Layouts and numbers, compared with the system's own header.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use super::*;

/// What the compiler must agree with: expressions of C++ and their values here.
///
/// Nothing is said of the sizes of structures that the library makes, or that it writes only as far as `comp_mask` says: later headers may
/// have more behind what is declared here.
fn expected() -> Vec<(&'static str, usize)> {
    vec![
        ("offsetof(mlx5dv_devx_umem, umem_id)", offset_of!(Umem, umem_id)),
        ("offsetof(mlx5dv_devx_uar, reg_addr)", offset_of!(Uar, reg_addr)),
        ("offsetof(mlx5dv_devx_uar, base_addr)", offset_of!(Uar, base_addr)),
        ("offsetof(mlx5dv_devx_uar, page_id)", offset_of!(Uar, page_id)),
        ("offsetof(mlx5dv_devx_uar, mmap_off)", offset_of!(Uar, mmap_off)),
        ("offsetof(mlx5dv_devx_uar, comp_mask)", offset_of!(Uar, comp_mask)),
        ("offsetof(mlx5dv_pd, pdn)", offset_of!(DvPd, pdn)),
        ("offsetof(mlx5dv_pd, comp_mask)", offset_of!(DvPd, comp_mask)),
        ("offsetof(mlx5dv_ah, av)", offset_of!(DvAh, av)),
        ("offsetof(mlx5dv_ah, comp_mask)", offset_of!(DvAh, comp_mask)),
        ("offsetof(mlx5_wqe_av, rmac)", offset_of!(AddressVector, rmac)),
        ("offsetof(mlx5dv_obj, ah)", KIND_AH * 2 * size_of::<usize>()),
        ("offsetof(mlx5dv_obj, pd)", KIND_PD * 2 * size_of::<usize>()),
        ("MLX5DV_OBJ_AH", OBJECT_AH as usize),
        ("MLX5DV_OBJ_PD", OBJECT_PD as usize),
        ("MLX5DV_UAR_ALLOC_TYPE_NC", NOT_COMBINED as usize),
        ("IBV_ACCESS_LOCAL_WRITE", LOCAL_WRITE as usize),
        ("MLX5_SND_DBR", 1),
        ("offsetof(mlx5_err_cqe, vendor_err_synd)", 54),
        ("offsetof(mlx5_err_cqe, syndrome)", 55),
        ("offsetof(mlx5_err_cqe, wqe_counter)", 60),
        ("offsetof(mlx5_err_cqe, op_own)", 63),
    ]
}

/// A program that compiles only if the header says the same, with `more` behind its own `mlx5dv_obj`.
fn program(more: &str) -> String {
    let mut text = String::from("#include <cstddef>\n#include <infiniband/mlx5dv.h>\n");
    for (expression, value) in expected() {
        writeln!(text, "static_assert(({expression}) == {value}, \"{expression}\");").unwrap();
    }
    let room = size_of::<DvObject>();
    writeln!(text, "struct object : mlx5dv_obj {{ {more} }};").unwrap();
    writeln!(text, "static_assert(sizeof(object) <= {room}, \"room for all kinds of objects\");").unwrap();
    text
}

#[test]
fn layouts_are_those_of_the_systems_header_whatever_later_ones_add() {
    let folder = std::env::temp_dir().join(format!("anabranch-mlx5dv-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let compile = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof"]).arg(&file);
        compiler
            .output()
            .map(|output| (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let probe = compile("probe.cpp", "#include <infiniband/mlx5dv.h>\n");
    let own = compile("own.cpp", &program(""));
    // rdma-core 54 added `devx` behind `pd`.
    let later = compile("later.cpp", &program("void *devx_in; void *devx_out; void *more[8];"));
    let wrong = compile("wrong.cpp", &program("").replace("mlx5dv_pd, pdn)) == 0", "mlx5dv_pd, pdn)) == 4"));
    let too_large = compile("large.cpp", &program("void *more[1000];"));
    // A folder that stays behind is no reason to fail.
    let _ = std::fs::remove_dir_all(&folder);
    match probe {
        Err(error) => println!("skipped: no C++ compiler: {error}"),
        Ok((false, _)) => println!("skipped: no infiniband/mlx5dv.h (Debian: libibverbs-dev)"),
        Ok((true, _)) => {
            for judged in [own, later] {
                let (same, words) = judged.unwrap();
                assert!(same, "{words}");
            }
            assert!(!wrong.unwrap().0 && !too_large.unwrap().0, "the compiler judges");
        }
    }
}

#[test]
fn every_function_is_in_the_library_where_it_is_installed() {
    // SAFETY: as in `LibMlx5::open`.
    match unsafe { Library::open(Some(SONAME), RTLD_NOW | RTLD_LOCAL) } {
        Err(error) => println!("skipped: {error}"),
        Ok(library) => {
            let library = ManuallyDrop::new(library);
            assert_eq!(Functions::of(&library).err(), None);
        }
    }
}

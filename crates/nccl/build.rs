//! The SONAME: with it the dynamic linker takes a preloaded file for the library that a program asks for, and loads no other.

fn main() {
    println!("cargo::rerun-if-env-changed=ANABRANCH_NCCL_SONAME");
    #[expect(clippy::disallowed_methods, reason = "a build script has nothing else")]
    let name = std::env::var("ANABRANCH_NCCL_SONAME").unwrap_or_else(|_| "libnccl.so.2".to_owned());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}");
}

use super::*;

fn rules(text: &str) -> Vec<(LintRule, u32)> {
    lint_source("x.hip", text).into_iter().map(|lint| (lint.rule, lint.line)).collect()
}

#[test]
fn each_rule_catches_its_bad_example() {
    use LintRule as R;
    for (rule, line, text) in [
        (R::DeviceGlobal, 1, "__device__ int counter;"),
        (R::DeviceGlobal, 1, "static int counter = f(1);"),
        (R::DeviceGlobal, 1, "__constant__ int table[4];"),
        (R::DeviceGlobal, 1, "__managed__ int x;"),
        (R::DeviceGlobal, 2, "void f() {\n  static int calls;\n}"),
        (R::DeviceGlobal, 2, "void f() {\n  __shared__ int part[4];\n}"),
        (R::RawPolling, 2, "void f(u64* p) {\n  while (flag_load(grid, p) == 0) {}\n}"),
        (R::RawPolling, 2, "void f(u64* p) {\n  while (*p == 0) {}\n}"),
        (R::RawPolling, 2, "void f() {\n  for (;;) g();\n}"),
        (R::Volatile, 1, "void f(volatile int* p);"),
        (R::UnscopedAtomic, 2, "void f(int* p) {\n  atomicAdd(p, 1);\n}"),
        (R::UnscopedAtomic, 2, "void f(int* p) {\n  __atomic_store_n(p, 1, 0);\n}"),
        (R::Trap, 2, "void f() {\n  printf(\"x\");\n}"),
        (R::Trap, 2, "void f() {\n  __builtin_trap();\n}"),
        (R::Trap, 2, "void f(int a) {\n  assert(a);\n}"),
        (R::ReturnBeforeBarrier, 3, "void f(int a) {\n  if (a) return;\n  grid.block_barrier();\n}"),
        (
            R::ReturnBeforeBarrier,
            5,
            "void f(int a) {\n  if (a) {\n    return;\n  }\n  arrive_is_last(grid, p, 1, 2);\n}",
        ),
        (
            R::FlagAfterBarrier,
            3,
            "void f() {\n  grid.block_barrier();\n  if (grid.thread == 0) flag_store(grid, p, 1);\n}",
        ),
        (R::ReturnBeforeBarrier, 3, "void f(int* a) {\n  if (a[1]) { return; }\n  grid.block_barrier();\n}"),
        (R::TargetTest, 1, "#if defined(ANABRANCH_TARGET_HOST)"),
        (R::TargetTest, 1, "#ifdef __gfx942__"),
        (R::TargetTest, 1, "#if __CUDA_ARCH__ >= 900"),
        (R::SystemInclude, 1, "#include <vector>"),
        (R::BareKernel, 1, "extern \"C\" __global__ void f() {}"),
        (R::BareKernel, 1, "extern \"C\" __attribute__((global)) void f() {}"),
        (R::BadException, 1, "// lint: allow(trap):"),
        (R::BadException, 1, "// lint: allow(no-such-rule): because"),
    ] {
        assert_eq!(rules(text), [(rule, line)], "{text}");
    }
    assert_eq!(rules(&"\n".repeat(201)), [(R::Length, 201)]);
}

#[test]
fn good_sources_pass() {
    let good = "// printf and volatile in a comment /* too */\n\
        #include \"anabranch/prelude.h\"\n\
        static constexpr u32 PHASE = 1;\n\
        static_assert(PHASE == 1, \"printf\");\n\
        struct Row { u32 source; static u32 size() { return 4; } };\n\
        template <class T>\nstatic ANABRANCH_DEVICE T twice(T x) { return x + x; }\n\
        ANABRANCH_KERNEL(copy, CopyArgs, 256) {\n\
          for (u32 i = 0; i < 4; ++i) { asm volatile(\"s_nop 0\"); }\n\
          u32 left = 3;\n  while (left > 0) --left;\n\
          wait_until(grid, wait, PHASE, 0, 1, p, [&](u64 seen) { return seen == 1; }, seen);\n\
          wait_until(grid, wait, PHASE, 0, 1, p, [left](u64 seen) { return seen == left; }, seen);\n\
          grid.block_barrier();\n\
          block_release_system(grid);\n\
          if (grid.thread == 0) flag_store(grid, p, 1);\n\
          if (left) return;\n\
        }\n";
    assert_eq!(lint_source("x.hip", good), []);
}

#[test]
fn exceptions_need_a_reason_and_hold_for_one_line() {
    let text = "void f() {\n  // lint: allow(raw-polling): ends with the list\n  // which is finite\n  for (;;) g();\n  for (;;) g();\n}";
    assert_eq!(rules(text), [(LintRule::RawPolling, 5)]);
    assert_eq!(
        rules("int x; // lint: allow(volatile): a test\nvolatile int y; // lint: allow(volatile): a test"),
        []
    );
}

//! Rules for device sources, checked without a compiler. Each kernel crate's tests call [`lint_source`] on its sources.
//!
//! A line that must break a rule is marked, with the reason: `// lint: allow(raw-polling): bounded by the ring's size`,
//! at its end or in the comment before it. That every wait has a budget needs no rule: `wait_until` takes the context
//! that holds it. That includes are embedded is checked when a unit is rendered, on top of the rule here.

use std::fmt;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LintRule {
    /// No variables that outlive a launch: several devices and worlds live in one process.
    DeviceGlobal,
    /// No loops that poll memory outside the prelude's wait: they have no deadline.
    RawPolling,
    /// No `volatile` objects: they have neither order nor scope.
    Volatile,
    /// No atomics but the prelude's, which name their scope.
    UnscopedAtomic,
    /// No `printf`, `assert`, `abort`, trap: they kill the context or the process.
    Trap,
    /// No `return` before a barrier in one function: the others wait for the thread that left.
    ReturnBeforeBarrier,
    /// No flag store after a block barrier without a release: other waves' stores may still be under way.
    FlagAfterBarrier,
    /// No tests of target or architecture outside the prelude.
    TargetTest,
    /// No includes with angle brackets.
    SystemInclude,
    /// Kernels are declared with `ANABRANCH_KERNEL`, which states the block size in the spelling the compiler obeys.
    BareKernel,
    /// At most 200 lines.
    Length,
    /// An exception without a reason, or for no such rule.
    BadException,
}

impl LintRule {
    const ALL: [(Self, &'static str); 12] = [
        (Self::DeviceGlobal, "device-global"),
        (Self::RawPolling, "raw-polling"),
        (Self::Volatile, "volatile"),
        (Self::UnscopedAtomic, "unscoped-atomic"),
        (Self::Trap, "trap"),
        (Self::ReturnBeforeBarrier, "return-before-barrier"),
        (Self::FlagAfterBarrier, "flag-after-barrier"),
        (Self::TargetTest, "target-test"),
        (Self::SystemInclude, "system-include"),
        (Self::BareKernel, "bare-kernel"),
        (Self::Length, "length"),
        (Self::BadException, "bad-exception"),
    ];

    /// Its name, as exceptions write it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(rule, _)| *rule == self).map_or("", |(_, name)| name)
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lint {
    /// The rule.
    pub rule: LintRule,
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The line's text.
    pub text: String,
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.rule.name(), self.text.trim())
    }
}

/// Lines that a device source may have.
const MOST_LINES: usize = 200;

/// Checks one device source; `name` is the name that it is included by (`anabranch/wait.h`) or its file name.
/// Files of the prelude are exempt from the rules for code that uses the prelude.
pub fn lint_source(name: &str, text: &str) -> Vec<Lint> {
    let bare = strip(text);
    let mut checker = Checker {
        name,
        lines: text.lines().collect(),
        prelude: anabranch_hip_jit::PRELUDE.iter().any(|header| header.name == name),
        findings: Vec::new(),
    };
    checker.lines_alone(&bare);
    checker.structure(&bare);
    let is_free = checker.prelude && name.ends_with("grid.h");
    if checker.lines.len() > MOST_LINES && !is_free {
        checker.find(LintRule::Length, MOST_LINES);
    }
    checker.exceptions();
    checker.findings.sort_by_key(|lint| (lint.line, lint.rule));
    checker.findings
}

struct Checker<'a> {
    name: &'a str,
    lines: Vec<&'a str>,
    prelude: bool,
    findings: Vec<Lint>,
}

const EXCEPTION: &str = "lint: allow(";

impl Checker<'_> {
    fn find(&mut self, rule: LintRule, index: usize) {
        let text = self.lines.get(index).copied().unwrap_or_default();
        let known = self.findings.iter().any(|lint| lint.rule == rule && lint.line as usize == index + 1);
        if known || self.is_excepted(rule, index) {
            return;
        }
        self.findings.push(Lint {
            rule,
            file: self.name.to_owned(),
            line: index as u32 + 1,
            text: text.to_owned(),
        });
    }

    fn is_excepted(&self, rule: LintRule, index: usize) -> bool {
        let word = format!("{EXCEPTION}{}):", rule.name());
        let names_rule = |index: usize| self.lines.get(index).is_some_and(|line| line.contains(&word));
        let mut before = index;
        while before > 0 && self.lines.get(before - 1).is_some_and(|line| line.trim_start().starts_with("//"))
        {
            before -= 1;
        }
        (before..=index).any(names_rule)
    }

    fn exceptions(&mut self) {
        for index in 0..self.lines.len() {
            let Some((_, rest)) = self.lines[index].split_once(EXCEPTION) else { continue };
            let (rule, reason) = rest.split_once("):").unwrap_or((rest, ""));
            if reason.trim().is_empty() || !LintRule::ALL.iter().any(|(_, name)| *name == rule) {
                self.find(LintRule::BadException, index);
            }
        }
    }

    fn is_target_file(&self) -> bool {
        self.prelude && (self.name.contains("/target_") || self.name.ends_with("/host_abi.h"))
    }

    /// Rules that look at one line.
    fn lines_alone(&mut self, bare: &str) {
        let target_file = self.is_target_file();
        let wait_file = self.prelude && self.name.ends_with("/wait.h");
        for (index, line) in bare.lines().enumerate() {
            let words = words(line);
            let has = |word: &str| words.contains(&word);
            let any = |candidates: &[&str]| candidates.iter().any(|word| words.contains(word));
            if line.trim_start().starts_with('#') && line.contains("include") && line.contains('<') {
                self.find(LintRule::SystemInclude, index);
            }
            if has("volatile") && !any(&["asm", "__asm__"]) {
                self.find(LintRule::Volatile, index);
            }
            if TRAPS.iter().any(|name| calls(line, name)) {
                self.find(LintRule::Trap, index);
            }
            if any(&["__constant__", "__managed__", "thread_local"])
                || (has("constant") && has("__attribute__"))
                || (any(&["__shared__", "shared"])
                    && !target_file
                    && (has("__shared__") || has("__attribute__")))
            {
                self.find(LintRule::DeviceGlobal, index);
            }
            let bare_kernel = any(&["__global__", "__launch_bounds__"]) || line.contains("((global))");
            if !self.prelude && bare_kernel {
                self.find(LintRule::BareKernel, index);
            }
            if !self.prelude && words.iter().any(|word| is_target_word(word)) {
                self.find(LintRule::TargetTest, index);
            }
            let atomic = |word: &&str| {
                ["__atomic_", "__hip_atomic_", "__sync_", "atomic"]
                    .iter()
                    .any(|prefix| word.starts_with(prefix))
            };
            let in_grid = self.prelude && self.name.ends_with("/grid.h");
            if !target_file && !in_grid && words.iter().any(atomic) {
                self.find(LintRule::UnscopedAtomic, index);
            }
            if !target_file && !wait_file && polls(line) {
                self.find(LintRule::RawPolling, index);
            }
        }
    }

    /// Rules that need to know in which function a line stands.
    fn structure(&mut self, bare: &str) {
        let mut scopes: Vec<Scope> = Vec::new();
        let mut statement = String::new();
        for (index, line) in bare.lines().enumerate() {
            if line.trim_start().starts_with('#') || line.trim_end().ends_with('\\') {
                continue; // macros have no scope of their own
            }
            for character in line.chars().chain(['\n']) {
                match character {
                    '{' => {
                        let kind = ScopeKind::of(&statement, &scopes);
                        self.statement(&statement, &mut scopes, index);
                        scopes.push(Scope::new(kind));
                        statement.clear();
                    }
                    '}' => {
                        self.statement(&statement, &mut scopes, index);
                        scopes.pop();
                        statement.clear();
                    }
                    ';' => {
                        self.statement(&statement, &mut scopes, index);
                        statement.clear();
                    }
                    other => statement.push(other),
                }
            }
        }
    }

    fn statement(&mut self, statement: &str, scopes: &mut [Scope], index: usize) {
        let words = words(statement);
        let has = |candidates: &[&str]| candidates.iter().any(|word| words.contains(word));
        let function = scopes.iter().position(|scope| scope.kind == ScopeKind::Function);
        let constant = has(&["constexpr", "static_assert", "typedef", "using", "extern"]);
        let Some(function) = function else {
            // Outside functions: a variable has no parenthesis, or an initialiser before it.
            let in_type = scopes.iter().any(|scope| scope.kind == ScopeKind::Type);
            let head = statement.split_once('=').map_or(statement, |(head, _)| head);
            let variable = has(&["static", "__device__", "ANABRANCH_DEVICE"]) && !head.contains('(');
            if variable && !constant && !in_type && !has(&["struct", "template"]) {
                self.find(LintRule::DeviceGlobal, index);
            }
            return;
        };
        if has(&["static"]) && !constant {
            self.find(LintRule::DeviceGlobal, index);
        }
        let in_lambda = scopes.iter().any(|scope| scope.kind == ScopeKind::Lambda);
        let nested = scopes.len() > function + 1 || has(&["if"]);
        let scope = &mut scopes[function];
        if has(&["return"]) && !in_lambda && nested {
            scope.returned = true;
        }
        if has(&["block_release_system", "arrive_is_last", "fence_release_system"]) {
            scope.released = true;
        }
        let (flag, unreleased) = (has(&["flag_store"]), scope.barred && !scope.released);
        let barrier = has(BARRIERS);
        let left = scope.returned && barrier;
        scope.barred |= barrier;
        if flag && unreleased {
            self.find(LintRule::FlagAfterBarrier, index);
        }
        if left {
            self.find(LintRule::ReturnBeforeBarrier, index);
        }
    }
}

const BARRIERS: &[&str] = &[
    "block_barrier",
    "__syncthreads",
    "block_broadcast",
    "block_release_system",
    "arrive_is_last",
    "grid_barrier",
    "grid_sync",
    "team_barrier",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScopeKind {
    Namespace,
    Type,
    Function,
    Lambda,
    Block,
}

#[derive(Debug)]
struct Scope {
    kind: ScopeKind,
    returned: bool,
    barred: bool,
    released: bool,
}

impl Scope {
    fn new(kind: ScopeKind) -> Self {
        Self { kind, returned: false, barred: false, released: false }
    }
}

impl ScopeKind {
    fn of(statement: &str, scopes: &[Scope]) -> Self {
        let words = words(statement);
        let in_function = scopes.iter().any(|scope| matches!(scope.kind, Self::Function | Self::Lambda));
        if in_function {
            return if begins_lambda(statement) { Self::Lambda } else { Self::Block };
        }
        if statement.contains(')') {
            return Self::Function;
        }
        if ["struct", "class", "union", "enum"].iter().any(|word| words.contains(word)) {
            return Self::Type;
        }
        if words.contains(&"namespace") || words.contains(&"extern") { Self::Namespace } else { Self::Block }
    }
}

/// Whether a capture list stands in the text: a bracket that indexes nothing.
fn begins_lambda(text: &str) -> bool {
    text.match_indices('[').any(|(at, _)| {
        let before = text[..at].trim_end().chars().next_back();
        let attribute = text[at + 1..].starts_with('[');
        !attribute
            && !before.is_some_and(|last| last.is_alphanumeric() || matches!(last, '_' | ')' | ']' | '['))
    })
}

fn is_target_word(word: &str) -> bool {
    const WORDS: [&str; 7] = [
        "__CUDA_ARCH__",
        "__CUDACC__",
        "__NVCC__",
        "__HIP__",
        "__AMDGCN__",
        "__HIP_DEVICE_COMPILE__",
        "__clang__",
    ];
    WORDS.contains(&word)
        || ["ANABRANCH_TARGET_", "ANABRANCH_ARCH_", "ANABRANCH_AMD_", "__gfx", "__HIP_PLATFORM"]
            .iter()
            .any(|prefix| word.starts_with(prefix))
}

const TRAPS: &[&str] =
    &["printf", "assert", "abort", "__builtin_trap", "__trap", "__builtin_abort", "exit", "__assert_fail"];

/// Whether a line has `name` followed by a parenthesis.
fn calls(line: &str, name: &str) -> bool {
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    line.match_indices(name).any(|(at, _)| {
        let after = line[at + name.len()..].trim_start();
        after.starts_with('(') && !line[..at].ends_with(is_word)
    })
}

/// Whether a line starts a loop that has no end of its own, or whose condition reads memory.
fn polls(line: &str) -> bool {
    let squeezed: String = line.chars().filter(|character| !character.is_whitespace()).collect();
    if ["for(;;)", "while(true)", "while(1)"].iter().any(|form| squeezed.contains(form)) {
        return true;
    }
    let Some((_, condition)) = squeezed.split_once("while(") else { return false };
    ["load", "flag", "atomic", "exchange", "(*", "!*", "while(*"].iter().any(|word| condition.contains(word))
        || condition.starts_with('*')
}

fn words(text: &str) -> Vec<&str> {
    text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'))
        .filter(|word| !word.is_empty())
        .collect()
}

/// The text with comments and the insides of strings blanked, line by line as before.
fn strip(text: &str) -> String {
    let mut bare = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('/', Some('/')) => {
                while characters.peek().is_some_and(|next| *next != '\n') {
                    characters.next();
                }
            }
            ('/', Some('*')) => {
                let mut before = ' ';
                for next in characters.by_ref().skip(1) {
                    if next == '\n' {
                        bare.push('\n');
                    }
                    if before == '*' && next == '/' {
                        break;
                    }
                    before = next;
                }
            }
            ('"', _) => {
                bare.push('"');
                while let Some(next) = characters.next() {
                    match next {
                        '\\' => drop(characters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                bare.push('"');
            }
            _ => bare.push(character),
        }
    }
    bare
}

#[cfg(test)]
mod tests;

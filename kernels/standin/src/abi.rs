//! Checks that Allfold's declarations of NVIDIA's libraries equal those of NVIDIA's headers: a C++ program of static assertions,
//! made from Rust's values and types, is compiled against the headers of NVIDIA's wheels. For tests.
//!
//! ```text
//! value("ncclSum", 0)            static_assert(ncclSum == 0)
//! field("ncclConfig_t", ..)      static_assert(offsetof(ncclConfig_t, magic) == 8 && ..)
//! function("ncclSend", "unsafe extern \"C\" fn(*const c_void, usize, ..) -> i32")
//!                                static_assert(same<decltype(&ncclSend), int (*)(void const*, size_t, ..)>)
//! ```
//!
//! Two signatures are the same if a call by one is also a call by the other: integers and enumerators of the same size; pointers to
//! the same type, or to void; `const` in the same places.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The C++ definition of `same`, which compares two signatures.
const SAME: &str = r"
#include <cstddef>
#include <type_traits>
template <class T> constexpr bool whole = std::is_integral_v<T> || std::is_enum_v<T>;
template <class A, class B> struct same {
    // C leaves the sign of an enumeration to the compiler.
    static constexpr bool signs = std::is_enum_v<A> || std::is_enum_v<B> || std::is_signed_v<A> == std::is_signed_v<B>;
    static constexpr bool value =
        std::is_same_v<A, B> || (whole<A> && whole<B> && sizeof(A) == sizeof(B) && signs);
};
template <class A, class B> struct same<A*, B*> {
    using X = std::remove_const_t<A>;
    using Y = std::remove_const_t<B>;
    static constexpr bool any() {
        if constexpr (std::is_void_v<X> || std::is_void_v<Y> || std::is_same_v<X, Y>) return true;
        else if constexpr (std::is_class_v<X> || std::is_class_v<Y>) return false;
        else return same<X, Y>::value;
    }
    static constexpr bool value = std::is_const_v<A> == std::is_const_v<B> && any();
};
template <class R, class S, class... A, class... B> struct same<R (*)(A...), S (*)(B...)> {
    static constexpr bool all() {
        if constexpr (sizeof...(A) != sizeof...(B)) return false;
        else return same<R, S>::value && (same<A, B>::value && ...);
    }
    static constexpr bool value = all();
};
";

/// The folder of NVIDIA's wheels for CUDA version 12 or 13, where `scripts/install-cuda-libraries.sh` installs them.
///
/// # Errors
/// One line that explains how to install the wheels.
pub fn wheels(cuda: u32) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../target/cuda{cuda}"));
    std::fs::canonicalize(folder)
        .map_err(|_| format!("no wheels of CUDA {cuda}: run scripts/install-cuda-libraries.sh"))
}

/// The environment variable by which a test's child process gets its CUDA version.
const CHILD: &str = "ALLFOLD_TEST_WHEELS";

/// Runs a test for the wheels of CUDA 12 and of CUDA 13, each in a child process, since a process loads a library once. `test` is
/// the test's full name, by which the child starts it; `body` gets the version and the folder. In the child the wheels form a
/// virtual environment, and no other CUDA library can be found except in `target/cuda`.
///
/// Prints which versions were skipped, and the output of `body`.
///
/// # Errors
/// The output of a child process in which the test failed.
pub fn each(test: &str, body: impl Fn(u32, &Path)) -> Result<(), String> {
    if let Some(cuda) = std::env::var(CHILD).ok().and_then(|cuda| cuda.parse().ok()) {
        body(cuda, &wheels(cuda)?);
        return Ok(());
    }
    for cuda in [12, 13] {
        match wheels(cuda) {
            Ok(folder) => println!("{}", start(test, cuda, &folder)?),
            Err(why) => println!("SKIP {test}, CUDA {cuda}: {why}"),
        }
    }
    Ok(())
}

fn start(test: &str, cuda: u32, folder: &Path) -> Result<String, String> {
    let said = |error: std::io::Error| error.to_string();
    let name = format!("allfold-wheels-{cuda}-{}-{}", std::process::id(), test.replace(':', "-"));
    let environment = std::env::temp_dir().join(name);
    let packages = environment.join("lib/python3");
    std::fs::create_dir_all(&packages).map_err(said)?;
    std::os::unix::fs::symlink(folder, packages.join("site-packages")).map_err(said)?;
    let mut command = Command::new(std::env::current_exe().map_err(said)?);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    for other in ["LD_LIBRARY_PATH", "ALLFOLD_CUDA", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "HOME"] {
        command.env_remove(other);
    }
    // NCCL searches for a network interface before it makes an id.
    command.env(CHILD, cuda.to_string()).env("VIRTUAL_ENV", &environment).env("NCCL_SOCKET_IFNAME", "lo");
    let output = command.output();
    let _ = std::fs::remove_dir_all(&environment);
    let output = output.map_err(said)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || !text.contains(" 1 passed") {
        return Err(format!("CUDA {cuda}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    }
    let (before, passed) = (format!("test {test} ... "), ["ok", "test result", "running "]);
    let lines = text.lines().map(|line| line.strip_prefix(&before).unwrap_or(line).trim());
    let own = |line: &&str| !line.is_empty() && !passed.iter().any(|other| line.starts_with(other));
    Ok(lines.filter(own).collect::<Vec<_>>().join("\n"))
}

/// A list of static assertions about headers.
#[derive(Clone, Debug)]
pub struct Assertions {
    text: String,
    count: usize,
    /// Names of C types by the last segment of the Rust type's name.
    names: BTreeMap<&'static str, &'static str>,
}

impl Assertions {
    /// An empty list of assertions over these headers. `names` maps types whose names differ between Rust and C.
    pub fn over(headers: &[&str], names: &[(&'static str, &'static str)]) -> Assertions {
        let mut text = String::from(SAME);
        for header in headers {
            let _ = writeln!(text, "#include <{header}>");
        }
        Assertions { text, count: 0, names: names.iter().copied().collect() }
    }

    /// The number of assertions.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no assertions.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn holds(&mut self, condition: &str, what: &str) {
        self.count += 1;
        let _ = writeln!(self.text, "static_assert({condition}, \"{what}\");");
    }

    /// Adds a declaration that later assertions use.
    pub fn given(&mut self, declaration: &str) {
        let _ = writeln!(self.text, "{declaration}");
    }

    /// Adds assertions that hold only under this condition of the preprocessor, such as functions of later versions.
    pub fn only_if(&mut self, condition: &str, then: impl FnOnce(&mut Assertions)) {
        let _ = writeln!(self.text, "#if {condition}");
        then(self);
        self.text += "#endif\n";
    }

    /// Asserts that a macro or enumerator has this value.
    pub fn value(&mut self, name: &str, value: i64) {
        self.holds(&format!("(long long)({name}) == {value}LL"), &format!("{name} is {value}"));
    }

    /// Asserts the size of a type in bytes.
    pub fn size(&mut self, of: &str, bytes: usize) {
        self.holds(&format!("sizeof({of}) == {bytes}"), &format!("{of} has {bytes} bytes"));
    }

    /// Asserts that a field of a structure begins at byte `at` and has `bytes` bytes.
    pub fn field(&mut self, of: &str, field: &str, at: usize, bytes: usize) {
        let condition =
            format!("offsetof({of}, {field}) == {at} && sizeof((({of}*)nullptr)->{field}) == {bytes}");
        self.holds(&condition, &format!("{of}.{field} is bytes {at} .. {at} + {bytes}"));
    }

    /// Asserts that a function has the type `rust`, the name of a function type as [`std::any::type_name`] gives it.
    ///
    /// # Errors
    /// `rust` is not the name of a function type.
    pub fn function(&mut self, name: &str, rust: &str) -> Result<(), String> {
        let signature = self.signature(rust).ok_or_else(|| format!("{rust} is no type of functions"))?;
        self.holds(
            &format!("same<decltype(&{name}), {signature}>::value"),
            &format!("{name} is {signature}"),
        );
        Ok(())
    }

    /// Translates `unsafe extern "C" fn(*mut A, B) -> R` to `R (*)(A*, B)`.
    fn signature(&self, rust: &str) -> Option<String> {
        let rust =
            rust.strip_prefix("core::option::Option<").and_then(|r| r.strip_suffix('>')).unwrap_or(rust);
        let (arguments, result) = rust.split_once("fn(")?.1.rsplit_once(')')?;
        let arguments: Vec<String> =
            arguments.split(", ").filter(|a| !a.is_empty()).map(|a| self.c(a)).collect();
        let result = result.strip_prefix(" -> ").map_or_else(|| "void".into(), |result| self.c(result));
        Some(format!("{result} (*)({})", arguments.join(", ")))
    }

    /// Translates a Rust type to C.
    fn c(&self, rust: &str) -> String {
        if let Some(to) = rust.strip_prefix("*mut ") {
            return self.c(to) + "*";
        }
        if let Some(to) = rust.strip_prefix("*const ") {
            return self.c(to) + " const*";
        }
        let last = rust.rsplit("::").next().unwrap_or(rust);
        let plain = match last {
            "c_void" => "void",
            "i8" => "char",
            "u8" => "unsigned char",
            "i32" => "int",
            "u32" => "unsigned int",
            "i64" => "long long",
            "u64" => "unsigned long long",
            "usize" => "size_t",
            "f32" => "float",
            "f64" => "double",
            other => self.names.get(other).copied().unwrap_or(other),
        };
        plain.into()
    }

    /// Compiles the assertions over the headers of `wheels`.
    ///
    /// # Errors
    /// The assertions that do not hold, one per line, or other messages of the compiler.
    pub fn check(&self, wheels: &Path) -> Result<(), String> {
        let mut command = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".into()));
        command.args(["-std=c++17", "-fsyntax-only", "-w", "-x", "c++", "-"]);
        let packages = std::fs::read_dir(wheels.join("nvidia")).map_err(|error| error.to_string())?;
        for package in packages.flatten() {
            let include = package.path().join("include");
            for folder in [include.join("cccl"), include].into_iter().filter(|folder| folder.is_dir()) {
                command.arg("-isystem").arg(folder);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("no C++ compiler ({error}): install g++"))?;
        if let Some(mut input) = child.stdin.take() {
            std::io::Write::write_all(&mut input, self.text.as_bytes()).map_err(|error| error.to_string())?;
        }
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<&str> = log.lines().filter_map(|line| line.split("error: ").nth(1)).collect();
        Err(if errors.is_empty() { log.into_owned() } else { errors.join("\n") })
    }
}

//! Which files of a crate use which others, read from their source: `use` declarations, and paths in expressions and types.
//! A re-export is not a use: a re-exported name counts for the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};

/// A path within a crate, without `crate`: the modules, then perhaps an item.
type Path = Vec<String>;

/// One file of a crate.
pub struct File {
    /// The file's path as it is printed.
    pub name: String,
    /// The module that the file is.
    module: Path,
    /// Names that the file defines, at any depth.
    defines: BTreeSet<String>,
    /// Names that `use` brings in, and where from.
    names: BTreeMap<String, Path>,
    /// Modules of which the file takes every name.
    globs: Vec<Path>,
    /// Paths in the file's expressions and types; a path of one word is a name that stands alone.
    mentioned: BTreeSet<Path>,
    /// Paths of private `use` declarations, which only this file can need.
    wanted: BTreeSet<Path>,
}

/// The source without comments, strings and test modules, cut into words and signs.
fn tokens(source: &str) -> Vec<String> {
    let source = source.find("#[cfg(test)]\nmod ").map_or(source, |at| {
        let rest = &source[at..];
        if rest.lines().nth(1).is_some_and(|line| line.ends_with('{')) { &source[..at] } else { source }
    });
    let mut found: Vec<String> = Vec::new();
    let mut chars = source.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let rest = &source[at..];
        let skip = |end: usize, chars: &mut std::iter::Peekable<std::str::CharIndices>| {
            while chars.peek().is_some_and(|(next, _)| *next < at + end) {
                chars.next();
            }
        };
        if rest.starts_with("//") {
            skip(rest.find('\n').unwrap_or(rest.len()), &mut chars);
        } else if rest.starts_with("r#\"") {
            skip(rest.find("\"#").map_or(rest.len(), |end| end + 2), &mut chars);
        } else if c == '"' {
            let mut escaped = false;
            for (_, c) in chars.by_ref() {
                match c {
                    _ if escaped => escaped = false,
                    '\\' => escaped = true,
                    '"' => break,
                    _ => {}
                }
            }
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            skip(rest[2..].find('\'').map_or(1, |end| end + 3), &mut chars);
        } else if c.is_alphanumeric() || c == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.push(rest[..end].to_string());
            skip(end, &mut chars);
        } else if rest.starts_with("::") {
            found.push("::".to_string());
            chars.next();
        } else if !c.is_whitespace() {
            found.push(c.to_string());
        }
    }
    found
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The leaves of a `use` tree that begins at `at`, as (path, name it gets); moves `at` behind the tree.
fn tree(tokens: &[String], at: &mut usize, prefix: &Path, leaves: &mut Vec<(Path, String)>) {
    let mut path = prefix.clone();
    while let Some(token) = tokens.get(*at) {
        match token.as_str() {
            "::" => *at += 1,
            "{" => {
                *at += 1;
                while tokens.get(*at).is_some_and(|token| token != "}") {
                    let begun = *at;
                    tree(tokens, at, &path, leaves);
                    // Skips a comma, or a token that is no part of a tree.
                    *at += usize::from(*at == begun || tokens.get(*at).is_some_and(|token| token == ","));
                }
                *at += 1;
                return;
            }
            "as" => {
                leaves.push((path, tokens[*at + 1].clone()));
                *at += 2;
                return;
            }
            "self" if !path.is_empty() => *at += 1,
            name if is_name(name) || name == "*" => {
                path.push(token.clone());
                *at += 1;
            }
            _ => break,
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    leaves.push((path, name));
}

impl File {
    /// A file whose path within the crate's `src` is `name`.
    pub fn read(name: &str, source: &str) -> File {
        let stem = name.trim_end_matches(".rs").trim_end_matches("mod").trim_end_matches('/');
        let module = match stem {
            "lib" | "main" => Path::new(),
            stem => stem.split('/').map(String::from).collect(),
        };
        let mut file = File {
            name: name.to_string(),
            module,
            defines: BTreeSet::new(),
            names: BTreeMap::new(),
            globs: Vec::new(),
            mentioned: BTreeSet::new(),
            wanted: BTreeSet::new(),
        };
        file.scan(&tokens(source));
        file
    }

    fn scan(&mut self, tokens: &[String]) {
        let mut at = 0;
        while at < tokens.len() {
            let token = tokens[at].as_str();
            let next = tokens.get(at + 1).map_or("", String::as_str);
            if token == "use" {
                let public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                let mut leaves = Vec::new();
                at += 1;
                tree(tokens, &mut at, &Path::new(), &mut leaves);
                for (path, name) in leaves {
                    self.import(path, name, public);
                }
                continue;
            }
            // The name of a module that is another file: a function of this name may be what the file re-exports.
            if token == "mod" && tokens.get(at + 2).is_some_and(|token| token == ";") {
                at += 2;
                continue;
            }
            // `const fn` and `static mut` define the name behind the second word.
            let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union"];
            let (kind, first) = (kinds.contains(&token), !["fn", "unsafe", "mut"].contains(&next));
            if (kind || token == "!" && at > 0 && tokens[at - 1] == "macro_rules") && is_name(next) && first {
                self.defines.insert(next.to_string());
                at += 2;
                continue;
            }
            if is_name(token) && (at == 0 || tokens[at - 1] != "::" && tokens[at - 1] != ".") {
                let mut path = vec![token.to_string()];
                while tokens.get(at + 1).is_some_and(|token| token == "::")
                    && tokens.get(at + 2).is_some_and(|token| is_name(token))
                {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                self.mentioned.insert(path);
            }
            at += 1;
        }
    }

    fn import(&mut self, path: Path, name: String, public: bool) {
        let Some(path) = self.absolute(&path) else { return };
        if name == "*" {
            self.globs.push(path[..path.len() - 1].to_vec());
            return;
        }
        if !public {
            self.wanted.insert(path.clone());
        }
        self.names.insert(name, path);
    }

    /// The module below the crate's root that the file belongs to; `None` for the root's own file.
    pub fn folder(&self) -> Option<&str> {
        self.module.first().map(String::as_str)
    }

    /// A path from the crate's root: without `crate`, `self` or `super` it is taken within this module. `None` if `super` leads
    /// beyond the root.
    fn absolute(&self, path: &[String]) -> Option<Path> {
        let mut from = self.module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (from, rest) = (Path::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    from.pop()?;
                    rest = &rest[1..];
                }
            }
            // A child module, as in `pub use child::Item`, or another crate, for which `resolve` finds no file.
            _ => {}
        }
        from.extend_from_slice(rest);
        Some(from)
    }
}

/// The files of one crate.
pub struct Crate {
    pub files: Vec<File>,
    modules: BTreeMap<Path, usize>,
}

impl Crate {
    pub fn new(files: Vec<File>) -> Crate {
        let modules = files.iter().enumerate().map(|(index, file)| (file.module.clone(), index)).collect();
        Crate { files, modules }
    }

    /// The file that defines the item that a path from the crate's root names; `None` for a module, and for names of other crates.
    /// `depth` limits the number of re-exports that are followed.
    fn resolve(&self, path: &[String], depth: usize) -> Option<usize> {
        let modules = (0..=path.len()).rev().find(|&taken| self.modules.contains_key(&path[..taken]))?;
        let (index, rest) = (self.modules[&path[..modules]], &path[modules..]);
        let file = &self.files[index];
        let name = rest.first()?;
        if file.defines.contains(name) || depth == 0 {
            return Some(index);
        }
        if let Some(target) = file.names.get(name) {
            let mut target = target.clone();
            target.extend_from_slice(&rest[1..]);
            return self.resolve(&target, depth - 1);
        }
        let mut by_glob = file.globs.iter().map(|module| {
            let mut target = module.clone();
            target.extend_from_slice(rest);
            target
        });
        by_glob.find_map(|target| self.resolve(&target, depth - 1))
    }

    /// The files that a file uses, each with one path that it uses. The use of what a folder's own `mod.rs` defines, by files in
    /// the folder, counts only with `parents`.
    pub fn uses(&self, index: usize, parents: bool) -> BTreeMap<usize, String> {
        let file = &self.files[index];
        let mut paths: Vec<Path> = file.wanted.iter().cloned().collect();
        for path in &file.mentioned {
            let first = &path[0];
            if ["crate", "self", "super"].contains(&first.as_str()) {
                paths.extend(file.absolute(path));
            } else if let Some(target) = file.names.get(first) {
                paths.push(target.iter().chain(&path[1..]).cloned().collect());
            } else {
                let within = |module: &Path| module.iter().chain(path).cloned().collect::<Path>();
                if path.len() > 1 {
                    paths.push(within(&file.module));
                }
                paths.extend(file.globs.iter().map(within));
            }
        }
        let mut used = BTreeMap::new();
        let within =
            |other: usize| other == index || !parents && file.module.starts_with(&self.files[other].module);
        for path in paths {
            if let Some(other) = self.resolve(&path, 8).filter(|&other| !within(other)) {
                used.entry(other).or_insert(path.join("::"));
            }
        }
        used
    }
}
